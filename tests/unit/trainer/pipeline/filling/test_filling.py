"""Algorithms 1 and 2 on cases that can be counted by hand, and the beam search against the recursion."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.trainer.pipeline.filling.iteration import Filling, fill
from services.trainer.pipeline.filling.one_bubble import FrozenWork, Piece, Progress, best_option, full_batch_candidates
from services.trainer.pipeline.schedule.bubbles import Bubble
from tests.unit.trainer.pipeline.profiles import frozen

BATCH = 64


def work(*times: list[float], sizes: tuple[int, ...] = (4, 8, 12, 16), candidates: int = 4096) -> FrozenWork:
    """Return components whose layers take these seconds for 64 samples on one device, a quarter on four."""
    parts = [frozen([one / BATCH for one in layers], name=f"c{at}") for at, layers in enumerate(times)]
    return FrozenWork(parts, BATCH, 4, sizes, candidates)


def pieces(filling: Filling) -> list[list[tuple[int, int, int]]]:
    return [[(one.component, one.layer, one.samples) for one in bubble.pieces] for bubble in filling.bubbles]


def test_algorithm_2_lists_what_fits_and_gives_the_rest_to_the_last_component() -> None:
    found = full_batch_candidates([[0, 2, 4], [0, 3, 6]], 7)
    assert found == [((2, 1), 7), ((1, 1), 5), ((0, 2), 6)]
    assert full_batch_candidates([[0, 2, 4]], 3) == [((1,), 2)]
    assert full_batch_candidates([], 3) == [((), 0.0)]
    brute = {counts for counts in itertools.product(range(4), range(3)) if 1.5 * counts[0] + 2.5 * counts[1] <= 6}
    listed = {counts for counts, _ in full_batch_candidates([[0, 1.5, 3, 4.5], [0, 2.5, 5]], 6)}
    assert listed <= brute
    assert all(any(one[0] == first for one in listed) for first in range(4))


def test_algorithm_1_adds_the_partial_layer_that_uses_most_of_the_rest() -> None:
    """One idle device: layers of 8 s and 16 s for 64 samples; a bubble of 11 s has 3 s for 12 of 64 samples."""
    one = work([8.0, 16.0])
    best = best_option(one.options(one.start(), 11, 1))
    assert best is not None
    assert best.pieces == (Piece(0, 0, 64, 64, 8.0), Piece(0, 1, 12, 12, 3.0))
    assert best.after == Progress((1,), (52,))
    alone = best_option(work([8.0, 16.0], sizes=()).options(one.start(), 11, 1))
    assert alone is not None
    assert alone.seconds == 8


def test_a_candidate_without_a_partial_layer_counts() -> None:
    """The whole component fits: the paper's line 5 would leave the list empty."""
    one = work([8.0])
    best = best_option(one.options(one.start(), 11, 1))
    assert best is not None
    assert (best.seconds, best.after.layers) == (8, (1,))


def test_the_rest_of_a_split_layer_fills_later_bubbles_as_in_fig_12() -> None:
    """A layer of 64 s on one device is split over three bubbles, then a later layer follows in the third."""
    one = work([64.0, 4.0], sizes=(4, 8, 12, 16, 24, 32))
    bubbles = [Bubble(0, 25, (0,)), Bubble(30, 42, (0, 1)), Bubble(50, 69, (0,))]
    filling = fill(bubbles, one, minimum_bubble_s=1)
    assert pieces(filling) == [[(0, 0, 24)], [(0, 0, 24)], [(0, 0, 16), (0, 1, 32)]]
    assert filling.bubbles[1].pieces[0].local_batch == 12
    assert [(piece.layer, piece.samples, piece.local_batch) for piece in filling.rest] == [(1, 32, 8)]
    assert filling.rest_s == 0.5
    assert filling.filled_device_s == 24 + 2 * 12 + 16 + 2


def test_components_wait_for_their_inputs_until_the_next_bubble_or_in_the_beam_within_it() -> None:
    text, locked = frozen([1 / BATCH], name="text"), frozen([2 / BATCH], name="locked", after=["text"])
    one = FrozenWork([text, locked], BATCH, 4)
    filling = fill([Bubble(0, 10, (0,)), Bubble(20, 30, (0,))], one)
    assert pieces(filling) == [[(0, 0, 64)], [(1, 0, 64)]]
    assert filling.rest == ()
    together = fill([Bubble(0, 10, (0,))], one, beam_width=2)
    assert pieces(together) == [[(0, 0, 64), (1, 0, 64)]]
    short = fill([Bubble(0, 2.5, (0,))], one, beam_width=2)
    assert pieces(short) == [[(0, 0, 64), (1, 0, 48)]]
    none = fill([Bubble(0, 0.75, (0,))], one, beam_width=2)
    assert pieces(none) == [[(0, 0, 48)]]


def test_short_bubbles_stay_empty_and_the_rest_runs_on_all_devices() -> None:
    one = work([8.0, 16.0])
    filling = fill([Bubble(0, 0.009, (0, 1, 2, 3))], one)
    assert filling.bubbles == ()
    assert [(piece.samples, piece.local_batch) for piece in filling.rest] == [(64, 16), (64, 16)]
    assert filling.rest_s == 6


def test_a_batch_that_devices_do_not_divide_takes_the_time_of_the_largest_part() -> None:
    one = work([6.4])
    best = best_option(one.options(one.start(), 10, 3))
    assert best is not None
    assert best.pieces[0].local_batch == 22
    assert best.seconds == pytest.approx(2.2)


COMPONENTS = st.lists(st.lists(st.integers(1, 40).map(float), min_size=1, max_size=6), min_size=1, max_size=3)
BUBBLES = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 3)), min_size=1, max_size=6)


@settings(max_examples=30)
@given(COMPONENTS, BUBBLES)
def test_the_beam_search_is_never_worse_than_the_recursion(
    times: list[list[float]], lengths: list[tuple[int, int]]
) -> None:
    bubbles = [
        Bubble(100.0 * at, 100.0 * at + length, tuple(range(count))) for at, (length, count) in enumerate(lengths)
    ]
    greedy = fill(bubbles, work(*times), minimum_bubble_s=1)
    beam = fill(bubbles, work(*times), minimum_bubble_s=1, beam_width=6)
    assert beam.rest_s <= greedy.rest_s + 1e-9
    for filling in (greedy, beam):
        assert all(one.seconds <= one.bubble.seconds + 1e-9 for one in filling.bubbles)
        run = [piece for one in filling.bubbles for piece in one.pieces] + list(filling.rest)
        for component, layers in enumerate(times):
            for layer in range(len(layers)):
                assert sum(one.samples for one in run if (one.component, one.layer) == (component, layer)) == BATCH
            order = [one.layer for one in run if one.component == component]
            assert order == sorted(order)


def test_the_beam_search_wins_where_the_longest_option_is_a_bad_one() -> None:
    """Greedy takes 9 s of the slow first component, and leaves no bubble for the second one's long layer."""
    parts = [[9.0 * 4], [8.0 * 4, 10.0 * 4]]
    bubbles = [Bubble(0, 9.5, (0, 1, 2, 3)), Bubble(20, 30, (0, 1, 2, 3))]
    greedy = fill(bubbles, work(*parts, sizes=()))
    beam = fill(bubbles, work(*parts, sizes=()), beam_width=4)
    assert (greedy.rest_s, beam.rest_s) == (10, 9)


def test_a_thinned_recursion_stays_near_the_whole_one() -> None:
    """Six components of eight layers have about 9⁵ candidates; with 256 of them the bubble is as full."""
    parts = [[0.7 + 0.31 * at + 0.17 * layer for layer in range(8)] for at in range(6)]
    one = work(*parts, candidates=256)
    best = best_option(one.options(one.start(), 12.0, 1))
    assert best is not None
    assert 11.9 < best.seconds <= 12
