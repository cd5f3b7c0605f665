"""Grouping and padding as pure functions."""

from __future__ import annotations

import pytest

from services.gpu_worker.engine.layout import chunks, groups


def test_groups_keep_order_of_appearance() -> None:
    assert groups([(4, 8, 8), (4, 8, 6), (4, 8, 8)]) == [[0, 2], [1]]


@pytest.mark.parametrize(
    ("count", "invariant", "want"),
    [
        (3, 0, [[0, 1, 2]]),
        (3, 4, [[0, 1, 2, 0]]),
        (5, 4, [[0, 1, 2, 3], [4, 4, 4, 4]]),
        (4, 4, [[0, 1, 2, 3]]),
        (2, 1, [[0], [1]]),
    ],
)
def test_chunks_are_whole_or_padded(count: int, invariant: int, want: list[list[int]]) -> None:
    assert chunks(count, invariant) == want
