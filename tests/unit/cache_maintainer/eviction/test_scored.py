from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cache_maintainer.eviction.scored import POLICIES, Fifo, Lcbfu, Lfu, Lru, Policy, StateStore
from shared.domain.types import State


def state(entry: str, step: int, *, uses: int = 0, size: int = 100, created: float = 0.0, used: float = 0.0) -> State:
    return State(entry, step, f"states/{entry}/1/{step}", size, "fp16", "", uses, created, used)


def names(states: Iterable[State]) -> list[tuple[str, int]]:
    return [(one.entry_id, one.step) for one in states]


def test_the_papers_example_2500_against_1000() -> None:
    policy = Lcbfu(initial_uses=0)
    i, j = state("i", 25, uses=100), state("j", 5, uses=200)
    assert policy.score(i)[0] == 2500
    assert policy.score(j)[0] == 1000
    assert names(StateStore(policy, [i, j]).make_room(1, 1, 200)) == [("j", 5)]
    assert names(StateStore(Lfu(), [i, j]).make_room(1, 1, 200)) == [("i", 25)]  # what a plain policy would do


def test_nothing_leaves_until_the_limit_then_as_many_as_come() -> None:
    shelf = StateStore(Lcbfu(), [state("a", k) for k in (5, 10, 15, 20, 25)])
    assert shelf.make_room(5, 500, 1000) == []
    shelf = StateStore(Lcbfu(), [state("a", k) for k in (5, 10, 15, 20, 25)])
    assert names(shelf.make_room(2, 200, 600)) == [("a", 5), ("a", 10)]  # one would do: the paper evicts |K|
    assert shelf.bytes == 300


def test_more_leave_while_the_bytes_do_not_fit() -> None:
    shelf = StateStore(Fifo(), [state("a", k, created=k) for k in range(1, 11)])
    assert len(shelf.make_room(1, 550, 1000)) == 6
    assert shelf.bytes + 550 <= 1000


def test_uses_move_a_state_back() -> None:
    shelf = StateStore(Lcbfu(), [state("a", 10), state("b", 10)])
    shelf.use(("a", 10), at=5.0)
    shelf.use(("gone", 10), at=5.0)
    assert names(shelf.make_room(1, 100, 200)) == [("b", 10)]
    (left,) = shelf
    assert (left.uses, left.used_at) == (1, 5.0)


def test_the_longest_unused_of_equals_leaves_first() -> None:
    policy = Lcbfu(initial_uses=0)
    states = [
        state("a", 10, created=2, used=3),
        state("b", 10, created=1, used=4),
        state("c", 5, created=3, used=5),
    ]
    assert names(StateStore(policy, states).make_room(1, 100, 300)) == [("a", 10)]


def test_initial_uses_decide_among_the_never_used() -> None:
    never, once = state("new", 25), state("old", 5, uses=3)
    assert names(StateStore(Lcbfu(initial_uses=0), [never, once]).make_room(1, 1, 200)) == [("new", 25)]
    assert names(StateStore(Lcbfu(initial_uses=1), [never, once]).make_room(1, 1, 200)) == [("old", 5)]


@pytest.mark.parametrize(("policy", "first"), [(Lru(), "b"), (Lfu(), "c"), (Fifo(), "a")])
def test_the_plain_policies(policy: Policy, first: str) -> None:
    states = [
        state("a", 5, created=1, used=9, uses=2),
        state("b", 5, created=2, used=3, uses=2),
        state("c", 5, created=3, used=4, uses=1),
    ]
    assert StateStore(policy, states).make_room(1, 100, 300)[0].entry_id == first


def test_alive_until_the_last_state_is_gone() -> None:
    shelf = StateStore(Fifo(), [state("a", 5, created=1), state("a", 10, created=2)])
    assert names(shelf.make_room(1, 100, 200)) == [("a", 5)]
    assert shelf.alive("a")
    shelf.remove(("a", 10))
    assert not shelf.alive("a")
    assert (len(shelf), shelf.bytes) == (0, 0)


def test_the_heap_does_not_grow_with_every_use() -> None:
    shelf = StateStore(Lcbfu(), [state("a", 10)])
    for at in range(1000):
        shelf.use(("a", 10), at=float(at))
    assert len(shelf._heap) < 100
    assert names(shelf.make_room(1, 100, 100)) == [("a", 10)]


steps = st.sampled_from([5, 10, 15, 20, 25])
operations = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.integers(0, 5), steps, st.integers(1, 400)),
        st.tuples(st.just("use"), st.integers(0, 5), steps, st.integers(1, 9)),
        st.tuples(st.just("remove"), st.integers(0, 5), steps, st.just(0)),
    ),
    max_size=60,
)


@given(operations=operations, policy=st.sampled_from(sorted(POLICIES)))
def test_the_running_heap_evicts_what_a_sort_would_and_keeps_the_budget(
    operations: list[tuple[str, int, int, int]], policy: str
) -> None:
    max_bytes = 1000
    shelf, model = StateStore(POLICIES[policy]()), dict[tuple[str, int], State]()
    for at, (kind, number, step, value) in enumerate(operations):
        key = (f"e{number}", step)
        if kind == "insert":
            new = state(*key, size=value, created=float(at), used=float(at))
            room = shelf.make_room(1, value, max_bytes)
            expected: list[State] = []
            if sum(one.bytes for one in model.values()) + value > max_bytes:
                for victim in sorted(model.values(), key=lambda one: (shelf.policy.score(one), one.entry_id, one.step)):
                    if expected and sum(one.bytes for one in model.values()) + value <= max_bytes:
                        break
                    expected.append(model.pop((victim.entry_id, victim.step)))
            assert room == expected
            shelf.insert(new)
            model[key] = new
        elif kind == "use":
            shelf.use(key, at=float(value))
            if key in model:
                old = model[key]
                model[key] = replace(old, uses=old.uses + 1, used_at=max(float(value), old.used_at))
        else:
            shelf.remove(key)
            model.pop(key, None)
        assert {(one.entry_id, one.step): one for one in shelf} == model
        assert shelf.bytes == sum(one.bytes for one in model.values()) <= max_bytes
