"""The policies beyond one fixed score: what leaves first, and that nothing is lost on the way."""

from __future__ import annotations

import random

import pytest

from services.cache_maintainer.eviction.aging import AgingStateStore, Lrbu
from services.cache_maintainer.eviction.policies import Knobs
from services.cache_maintainer.eviction.scored import StateStore
from services.replay.simulated.general import (
    SHELVES,
    Gdsf,
    GdsfStateStore,
    S3Fifo,
    S3FifoStateStore,
    WTinyLfu,
    WTinyLfuStateStore,
    open_state_store,
)
from shared.domain.types import State


def state(entry: str, step: int, *, uses: int = 0, size: int = 100, at: float = 0.0) -> State:
    return State(entry, step, f"states/{entry}/1/{step}", size, "fp16", "", uses, at, at)


def leaving(shelf: StateStore, count: int, now: float) -> list[str]:
    return [one.entry_id for one in shelf.make_room(count, 100, shelf.bytes, now)]


def test_lrbu_weighs_use_steps_bytes_and_time_since_the_last_use() -> None:
    # FlexCache eq. 3, with one use at birth: 2·10/(100·8), 25/(100·20), 25/(50·20), 5/(100·1)
    states = [state("used", 10, uses=1, at=12), state("old", 25), state("small", 25, size=50), state("new", 5, at=19)]
    policy = Lrbu()
    worth = {one.entry_id: policy.worth(one, 20 - one.used_at) for one in states}
    assert worth == pytest.approx({"used": 0.025, "old": 0.0125, "small": 0.025, "new": 0.05})
    assert leaving(AgingStateStore(policy, states), 1, now=20) == ["old"]
    assert leaving(AgingStateStore(policy, states), 1, now=1000) == ["new"]  # by then all are old


def test_lrbu_always_evicts_what_is_worth_least_at_that_moment() -> None:
    rng, policy = random.Random(0), Lrbu()
    shelf = AgingStateStore(policy)
    for now in range(1, 600):
        held = list(shelf)
        if held and rng.random() < 0.4:
            used = rng.choice(held)
            shelf.use((used.entry_id, used.step), float(now))
        new = state(f"e{now}", rng.choice((5, 15, 25)), size=rng.choice((50, 100)), at=float(now))
        before = {(one.entry_id, one.step): policy.worth(one, now - one.used_at) for one in shelf}
        victims = shelf.make_room(1, new.bytes, 2000, float(now))
        gone = {(one.entry_id, one.step) for one in victims}
        kept = [worth for key, worth in before.items() if key not in gone]
        assert all(before[key] <= min(kept, default=9.0) for key in gone)
        shelf.insert(new)
        assert shelf.bytes == sum(one.bytes for one in shelf) <= 2000


def test_gdsf_lets_old_use_pale() -> None:
    shelf = GdsfStateStore(Gdsf(initial_uses=1), [state("much", 10, uses=3)])
    for number in range(6):  # each newcomer raises what the next one starts with
        shelf.insert(state(f"e{number}", 10, at=number))
        leaving(shelf, 1, now=number)
    assert "much" not in {one.entry_id for one in shelf}


def test_s3fifo_keeps_what_was_used_twice_while_it_waited() -> None:
    shelf = S3FifoStateStore(S3Fifo(), [state(f"e{number}", 5, at=number) for number in range(10)])
    for _ in range(2):
        shelf.use(("e0", 5), 20.0)
    shelf.use(("e1", 5), 21.0)
    assert leaving(shelf, 3, now=30) == ["e1", "e2", "e3"]
    assert ("e0", 5) in shelf


def test_wtinylfu_takes_in_only_what_was_used_more_than_what_would_leave() -> None:
    shelf = WTinyLfuStateStore(WTinyLfu(), [state(f"e{number}", 5, at=number) for number in range(10)])
    assert leaving(shelf, 1, now=10) == ["e0"]
    shelf.insert(state("new", 5, at=11))
    shelf.insert(state("next", 5, at=12))  # pushes `new` out of the window
    assert leaving(shelf, 1, now=13) != ["e1"]  # not used more often: a newcomer goes, not the next in line
    assert ("e1", 5) in shelf


@pytest.mark.parametrize("name", sorted(SHELVES))
def test_every_shelf_counts_right_and_can_be_emptied(name: str) -> None:
    rng, shelf = random.Random(1), open_state_store(name, Knobs(capture_steps=(5, 25)))
    for now in range(300):
        for step in (5, 25):
            shelf.insert(state(f"e{now}", step, size=rng.choice((60, 100)), at=float(now)))
        held = list(shelf)
        used = rng.choice(held)
        shelf.use((used.entry_id, used.step), now + 0.5)
        gone = rng.choice(held)
        shelf.remove((gone.entry_id, gone.step))
        shelf.make_room(2, 200, 4000, float(now))
        assert shelf.bytes == sum(one.bytes for one in shelf)
    count = len(shelf)
    assert len(shelf.make_room(count, 4000, 4000, 999.0)) == count
    assert shelf.bytes == 0
