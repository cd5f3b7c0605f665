"""States that need another one of their run (codec `keyframes`): no policy leaves one without its base."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from services.cache_maintainer.contents import CacheContents
from services.cache_maintainer.eviction.policies import SHELVES, Knobs, open_state_store
from services.cache_maintainer.eviction.scored import Offer, StateStore, Wish
from shared.domain.types import State

KS, BASE = (5, 10, 15, 20, 25), 15


def store(name: str) -> StateStore:
    return open_state_store(name, Knobs(capture_steps=KS))


def states_of(entry: str, at: float, ks: tuple[int, ...] = KS) -> list[State]:
    return [
        State(entry, k, "", 1600 if k == BASE else 100, "" if k == BASE else f"keyframes@{BASE}", "", 0, at, at)
        for k in ks
    ]


def offer_of(entry: str, at: float) -> Offer:
    sizes = tuple(state.bytes for state in states_of(entry, at))
    return Offer(entry, "", 0, KS, sizes, at, needs={k: BASE for k in KS if k != BASE})


def assert_readable(shelf: StateStore) -> None:
    for state in shelf:
        assert not state.needs or (state.entry_id, state.needs) in shelf


@pytest.mark.parametrize("name", sorted(SHELVES))
def test_no_state_outlives_the_one_that_it_needs(name: str) -> None:
    rng, shelf = random.Random(1), store(name)
    contents = CacheContents(shelf, None, 20_000)
    for now in range(200):
        entry = f"e{now}"
        wishes = [Wish(one.entry_id, 25, one.step) for one in rng.sample(list(shelf), min(3, len(shelf)))]
        taken = contents.take_in([replace(offer_of(entry, float(now)), wishes=wishes)], float(now))
        assert BASE in taken.kept[0] or not taken.kept[0]
        for state in states_of(entry, float(now), taken.kept[0]):
            contents.put(state)
        contents.settled(entry)
        if len(shelf):
            used = rng.choice(list(shelf))
            for key in shelf.read_with((used.entry_id, used.step)):
                shelf.use(key, now + 0.5)
        assert shelf.bytes == sum(one.bytes for one in shelf) <= 20_000
        assert_readable(shelf)
    gone = [state for _ in range(3) for state in shelf.make_room(1, 2000, shelf.bytes, 999.0)]
    assert gone
    assert_readable(shelf)
    count = len(shelf)
    assert len(shelf.make_room(count, 0, -1, 999.0)) == count


@pytest.mark.parametrize("name", sorted(SHELVES))
def test_a_base_leaves_after_the_states_that_need_it(name: str) -> None:
    shelf = store(name)
    for state in states_of("a", 1.0):
        shelf.insert(state)
    gone = shelf.make_room(0, 0, 0, 2.0)
    assert [state.step for state in gone][-1] == BASE
    assert sorted(state.step for state in gone) == list(KS)
    assert (len(shelf), shelf.bytes) == (0, 0)


def test_a_use_of_a_state_is_a_use_of_its_base() -> None:
    shelf = store("lrbu")
    for entry in ("hot", "cold"):
        for state in states_of(entry, 1.0):
            shelf.insert(state)
    assert shelf.read_with(("hot", BASE)) == [("hot", BASE)]
    for _ in range(9):
        for key in shelf.read_with(("hot", 25)):
            shelf.use(key, 2.0)
    assert {state.entry_id for state in shelf.make_room(0, 1600, shelf.bytes, 9.0)} == {"cold"}


def test_of_an_offer_only_states_with_their_base_are_kept() -> None:
    offer = offer_of("a", 1.0)
    assert offer.readable((5, 10, 20)) == ()
    assert offer.readable((5, BASE)) == (5, BASE)
    assert offer.state_bytes == 400  # the mean: a base has most bytes
    contents = CacheContents(store("lru"), None, 1500)  # no room for the base
    assert contents.take_in([offer], 1.0).kept == [()]


def test_the_policy_afterimage_weighs_a_run_as_a_whole() -> None:
    shelf = store("afterimage")
    for entry in ("a", "b"):
        shelf.admit(offer_of(entry, 1.0), 10_000)
        for state in states_of(entry, 1.0):
            shelf.insert(state)
    for at in range(2, 260):  # enough for the first fit
        shelf.looked_up([Wish("a", 25, 25)], float(at))
    gone = shelf.make_room(0, 2000, shelf.bytes, 260.0)
    assert {state.entry_id for state in gone} == {"b"}
    assert len(gone) == 5
