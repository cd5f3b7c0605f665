"""The offline bound against every possible cache of small traces."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.replay.simulated.bound import Alike, States, bound, options_of, tightened
from services.replay.simulated.own_steps import OwnStates
from services.replay.traces.neighbours import Neighbours
from services.retriever.selection import Ladder
from shared.domain.plan_rules import scale_steps
from shared.models.card_lookup import find_card
from shared.models.k_table import KTable, Level

LEVELS = (1, 2)
LADDER = Ladder(KTable((Level(1, 0.5), Level(2, 0.8)), steps=4), steps=4)
ALIKE = Alike(LADDER, LEVELS)
CARD = find_card("noop:")
KEPT = (10, 25)
OF_50 = KTable((Level(10, 0.5), Level(25, 0.8)))


def neighbours_of(cosines: list[list[float]], width: int) -> Neighbours:
    """cosines[i][j] for j < i; those above .5 are listed, the `width` largest of them."""
    count = len(cosines)
    indices = np.full((count, width), -1, np.int32)
    similarities = np.full((count, width), -1, np.float32)
    cut = np.zeros(count, np.bool_)
    for i in range(count):
        near = sorted((j for j in range(i) if cosines[i][j] > 0.5), key=lambda j: -cosines[i][j])
        cut[i] = len(near) > width
        for place, j in enumerate(near[:width]):
            indices[i, place], similarities[i, place] = j, cosines[i][j]
    return Neighbours(indices, similarities, cut, 0.5)


def best_possible(cosines: list[list[float]], room: int, sizes: list[int] | None = None) -> int:
    """Steps saved by the best of all caches of `room` bytes: after each request any of what is held, and any state of
    that request, may be kept. sizes: bytes of one state of each request; None: 1 each."""
    count = len(cosines)
    each = sizes or [1] * count

    @cache
    def from_here(i: int, held: frozenset[tuple[int, int]]) -> int:
        if i == count:
            return 0
        saved = max((k for j, k in held if LADDER.wished(cosines[i][j]) >= k), default=0)
        could = [*held, *((i, k) for k in LEVELS)]
        most = room // min(each)
        kept = (
            frozenset(some)
            for number in range(most + 1)
            for some in combinations(could, number)
            if sum(each[j] for j, _ in some) <= room
        )
        return saved + max(from_here(i + 1, after) for after in kept)

    return from_here(0, frozenset())


def best_possible_of_own(cosines: list[list[float]], room: int, steps: list[int]) -> int:
    """The same where request i takes steps[i] steps, and a state takes one byte."""
    count, ladders = len(cosines), [Ladder(OF_50, total) for total in steps]

    def start(state: tuple[int, int], i: int) -> int:
        source, step = state
        k = CARD.step_in(step, steps[source], steps[i])
        return k if k <= ladders[i].wished(cosines[i][source]) else 0

    @cache
    def from_here(i: int, held: frozenset[tuple[int, int]]) -> int:
        if i == count:
            return 0
        saved = max((start(state, i) for state in held), default=0)
        could = [*held, *((i, step) for step in scale_steps(KEPT, steps[i]))]
        kept = (frozenset(some) for number in range(room + 1) for some in combinations(could, number))
        return saved + max(from_here(i + 1, after) for after in kept)

    return from_here(0, frozenset())


def bound_of(
    cosines: list[list[float]], room: int, width: int, sizes: list[int] | None = None
) -> tuple[float, float, float]:
    """(tightened bound, bound, infinite cache) in steps."""
    each = np.array(sizes or [1] * len(cosines), np.int64)
    return in_steps(neighbours_of(cosines, width), ALIKE, each, room, 4 * len(cosines))


def in_steps(near: Neighbours, may_be: States, each: np.ndarray, room: int, asked: int) -> tuple[float, float, float]:
    options = options_of(near, may_be, each, 0)
    found = bound(options, room, asked)
    closer = tightened(options, found, room, asked)
    return closer.steps_saved * asked, found.steps_saved * asked, found.infinite * asked


traces = st.integers(2, 5).flatmap(
    lambda count: st.lists(
        st.lists(st.sampled_from([0.0, 0.6, 0.9]), min_size=count, max_size=count), min_size=count, max_size=count
    )
)


@settings(max_examples=60)
@given(cosines=traces, room=st.integers(1, 2), width=st.integers(1, 5))
def test_no_cache_is_better_than_the_bound(cosines: list[list[float]], room: int, width: int) -> None:
    possible = best_possible(cosines, room)
    closer, upper, infinite = bound_of(cosines, room, width)
    assert possible <= closer + 1e-6
    assert closer <= upper + 1e-6 <= infinite + 2e-6


@settings(max_examples=60)
@given(
    cosines=traces,
    sizes=st.lists(st.integers(2, 5), min_size=5, max_size=5),
    room=st.integers(2, 7),
    width=st.integers(1, 5),
)
def test_nor_is_one_whose_entries_are_of_unequal_bytes(
    cosines: list[list[float]], sizes: list[int], room: int, width: int
) -> None:
    each = sizes[: len(cosines)]
    possible = best_possible(cosines, room, each)
    closer, upper, infinite = bound_of(cosines, room, width, each)
    assert possible <= closer + 1e-6
    assert closer <= upper + 1e-6 <= infinite + 2e-6


@settings(max_examples=100)
@given(
    cosines=traces,
    steps=st.lists(st.sampled_from([1, 10, 25, 50, 60]), min_size=5, max_size=5),
    room=st.integers(1, 2),
    width=st.integers(1, 5),
)
def test_nor_is_one_whose_requests_each_take_a_t_of_their_own(
    cosines: list[list[float]], steps: list[int], room: int, width: int
) -> None:
    own = np.array(steps[: len(cosines)], np.int64)
    possible = best_possible_of_own(cosines, room, own.tolist())
    may_be = OwnStates(own, CARD, OF_50, KEPT)
    near, each = neighbours_of(cosines, width), np.ones(len(own), np.int64)
    closer, upper, infinite = in_steps(near, may_be, each, room, int(own.sum()))
    assert possible <= closer + 1e-6
    assert closer <= upper + 1e-6 <= infinite + 2e-6


def test_where_all_take_the_same_t_the_bound_is_the_plain_one() -> None:
    cosines = [[0.9 if (i + j) % 3 else 0.6 for j in range(i)] for i in range(6)]
    near, each, asked = neighbours_of(cosines, 3), np.ones(6, np.int64), 6 * 50
    own = OwnStates(np.full(6, 50), CARD, OF_50, KEPT)
    assert in_steps(near, own, each, 2, asked) == in_steps(near, Alike(Ladder(OF_50, 50), KEPT), each, 2, asked)


def test_a_state_that_fits_no_other_run_saves_nothing_there() -> None:
    # 12 of 25 steps is no noise level of a run of 10, 5 of 25 is its second
    cosines = [[], [0.9]]
    own = OwnStates(np.array([25, 10]), CARD, OF_50, KEPT)
    closer, _, infinite = in_steps(neighbours_of(cosines, 2), own, np.ones(2, np.int64), 2, 35)
    assert closer == pytest.approx(2)
    assert infinite == pytest.approx(2) == best_possible_of_own(cosines, 2, [25, 10])


def test_a_small_state_takes_less_of_the_room_than_a_large_one() -> None:
    # four pairs, each far apart, in a product of room and time of 16: two small pairs take 4 each, a large one 8
    cosines = [[0.9 if i - j == 4 else 0.0 for j in range(i)] for i in range(8)]
    uneven, large = [1, 1, 2, 2, 1, 1, 1, 1], [2] * 8
    assert best_possible(cosines, 2, uneven) == 4
    assert bound_of(cosines, 2, 5, uneven)[1] == pytest.approx(6)
    assert best_possible(cosines, 2, large) == 2
    assert bound_of(cosines, 2, 5, large)[1] == pytest.approx(4)


def test_it_is_reached_where_one_state_serves_everyone() -> None:
    cosines = [[0.9] * i for i in range(5)]
    assert best_possible(cosines, 1) == 8
    assert bound_of(cosines, 1, 5)[0] == pytest.approx(8)


def test_a_small_cache_is_bounded_below_the_infinite_one() -> None:
    # four pairs, each far apart: one state at a time can be held for one pair only
    count = 8
    cosines = [[0.9 if i - j == 4 else 0.0 for j in range(i)] for i in range(count)]
    _, upper, infinite = bound_of(cosines, 1, 5)
    assert infinite == 8
    assert best_possible(cosines, 1) == 2
    assert upper == pytest.approx(4)  # held for 8 gaps at most, and a pair takes 4: two of them


def test_who_wants_a_state_late_pays_for_all_the_time_it_is_held() -> None:
    cosines = [
        [],
        [0.9],
        [0.9, 0.0],
        [0.0, 0.9, 0.6],
        [0.9, 0.6, 0.6, 0.9],
        [0.9, 0.6, 0.9, 0.6, 0.0],
        [0.0, 0.6, 0.9, 0.6, 0.6, 0.6],
    ]
    closer, upper, _ = bound_of(cosines, 1, 7)
    assert best_possible(cosines, 1) == 9
    assert upper == pytest.approx(12)
    assert 10 <= closer < 10.1


def test_what_was_held_before_counting_is_free() -> None:
    cosines = [[0.0], [0.9]]
    options = options_of(neighbours_of(cosines, 2), ALIKE, np.ones(2, np.int64), 1)
    assert options.held.tolist() == [0, 0]
    assert bound(options, 1, asked=4).steps_saved == 0.5
