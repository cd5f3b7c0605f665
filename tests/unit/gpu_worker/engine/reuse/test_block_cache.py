"""The three sets of a batch, and the cached tensors of patches that were in several batches."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gpu_worker.engine.reuse.block_cache import (
    PatchId,
    Places,
    Saved,
    changes,
    gather,
    replace_rows,
    select,
    sets_of,
)

IDS = st.lists(st.integers(0, 12), unique=True, max_size=10)


@given(IDS, IDS)
def test_common_new_and_expired_part_the_ids(cached: list[int], batch: list[int]) -> None:
    found = sets_of(cached, batch)
    assert all(batch[here] == cached[there] for here, there in found.common)
    assert {batch[here] for here, _ in found.common} == set(cached) & set(batch)
    assert {batch[here] for here in found.new} == set(batch) - set(cached)
    assert {cached[there] for there in found.expired} == set(cached) - set(batch)
    assert sorted([*found.new, *(here for here, _ in found.common)]) == list(range(len(batch)))


def saved(numbers: list[int]) -> Saved:
    """Each number is an image: one row in `inputs`, a row for each of its squares in `outputs`."""
    values = torch.tensor(numbers, dtype=torch.float32)[:, None]
    squares = values.repeat_interleave(torch.tensor([_id(number)[2] for number in numbers]), dim=0)
    ids = tuple(_id(number) for number in numbers)
    ages = np.array(numbers, dtype=np.int64)
    return Saved(ids, (values,), (values + 100, (squares + 200,)), (), ages, ages + 1)


def _id(number: int) -> PatchId:
    return number, 0, 2 + number % 3, (4, 8, 8)


def _rows(ids: tuple[PatchId, ...]) -> list[list[int]]:
    """The rows of each image's squares."""
    counts = [squares for _, _, squares, _ in ids]
    return [list(range(end - count, end)) for end, count in zip(np.cumsum(counts).tolist(), counts, strict=True)]


@given(IDS, IDS, IDS)
@settings(max_examples=50)
def test_patches_of_several_batches_are_put_together(one: list[int], other: list[int], batch: list[int]) -> None:
    other = [number for number in other if number not in one]
    kept = [saved(numbers) if numbers else None for numbers in (one, other)]
    ids = tuple(_id(number) for number in batch)
    found, places = gather(kept, ids)
    known = [place for place, number in enumerate(batch) if number in (*one, *other)]
    assert places.tolist() == known or not batch
    if found is None:
        assert not known
        return
    for place in known:
        assert found.inputs[0][place] == batch[place]
        assert found.outputs[0][place] == batch[place] + 100
        assert found.outputs[1][0][_rows(ids)[place]].flatten().tolist() == [batch[place] + 200] * ids[place][2]
        assert (found.in_a_row[place], found.steps[place]) == (batch[place], batch[place] + 1)


def test_an_unchanged_batch_is_taken_as_it_is() -> None:
    kept = saved([3, 1])
    found, places = gather([None, kept, kept], kept.ids)
    assert found is kept
    assert places.tolist() == [0, 1]


def test_rows_are_replaced_in_a_copy() -> None:
    before, squares = torch.zeros(3, 2), torch.zeros(9, 2)
    ids = tuple(_id(number) for number in range(3))  # of 2, 3 and 4 squares
    new = torch.ones(1, 2), None, torch.ones(3, 2)
    after = replace_rows((before, None, squares), Places(ids, np.array([1])), new)
    assert after[0].sum(1).tolist() == [0, 2, 0]
    assert after[1] is None
    assert after[2].sum(1).tolist() == [0, 0, 2, 2, 2, 0, 0, 0, 0]
    assert before.sum() == squares.sum() == 0
    first_and_last = select((torch.arange(3), torch.arange(9)), Places(ids, np.array([0, 2])))
    assert [each.tolist() for each in first_and_last] == [[0, 2], [0, 1, 5, 6, 7, 8]]


def test_images_of_one_square_among_others_and_images_that_are_not_cut() -> None:
    shape = (4, 8, 8)
    packed: tuple[PatchId, ...] = ((1, 0, 1, shape), (2, 0, 3, shape), (3, 0, 1, shape))
    rows = torch.arange(5)
    assert [select(rows, Places(packed, np.array(places))).tolist() for places in ([0, 2], [1], [1, 2])] == [
        [0, 4],
        [1, 2, 3],
        [1, 2, 3, 4],
    ]
    whole: tuple[PatchId, ...] = ((1, 0, 0, shape), (2, 0, 0, shape))
    kept = Saved(whole, (torch.arange(2.0)[:, None],), (), (), np.zeros(2, dtype=int), np.zeros(2, dtype=int))
    found, places = gather([kept], (packed[0], whole[1]))  # the first is cut now, so nothing of it counts
    assert found is not None
    assert (places.tolist(), found.inputs[0].flatten().tolist()) == ([1], [0, 1])


def test_a_change_is_a_share_of_the_later_square() -> None:
    now = torch.full((2, 3, 4), 2.0), torch.full((2, 5), 2.0)
    before = torch.full((2, 3, 4), 1.0), torch.full((2, 5), 2.0)
    np.testing.assert_allclose(changes(now, before, [_id(0), _id(1)]), 12 / (4 * 17))


def test_a_change_of_packed_images_counts_the_squares_of_each() -> None:
    texts, squares = torch.full((2, 1), 2.0), torch.full((5, 1), 2.0)  # of 2 and 3 squares
    moved = squares.clone()
    moved[4] = 0
    found = changes((texts, squares), (texts, moved), [_id(0), _id(1)])
    np.testing.assert_allclose(found, [0, 1 / 4])
