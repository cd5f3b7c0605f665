"""What an S3 server refuses only for a moment."""

from __future__ import annotations

from typing import Any

import pytest
from minio.error import S3Error

from shared.blobs import s3_errors
from shared.blobs.s3_errors import TRIES, unless_refused_again


def refusal(code: str) -> S3Error:
    response: Any = None
    return S3Error(response, code, "", "/bucket/deep/er/2", "1", "2")


@pytest.mark.parametrize(
    ("codes", "asked"),
    [([], 1), (["AccessDenied"] * (TRIES - 1), TRIES), (["AccessDenied"] * 9, TRIES), (["SlowDown"], 1)],
)
def test_a_put_that_is_refused_is_asked_again_a_few_times(
    codes: list[str], asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_errors, "AGAIN_S", 0.0)
    left, calls = list(codes), []

    def work() -> None:
        calls.append(1)
        if left:
            raise refusal(left.pop())

    if left and (len(left) >= TRIES or left[-1] != "AccessDenied"):
        with pytest.raises(S3Error, match=left[-1]):
            unless_refused_again(work)
    else:
        unless_refused_again(work)
    assert len(calls) == asked
