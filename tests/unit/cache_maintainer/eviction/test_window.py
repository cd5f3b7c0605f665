"""The window of pictures: by count, by bytes, by age; in order of arrival or by another policy."""

from __future__ import annotations

from dataclasses import replace

from services.cache_maintainer.eviction.scored import Fifo, Lcbfu, Lru
from services.cache_maintainer.eviction.window import Limits, Window, last_that_fit
from shared.domain.types import PICTURE_STEP, State

ROOMY = Limits(max_count=100, max_bytes=10_000)


def picture(name: str, at: float, size: int = 100, **changes: float) -> State:
    state = State(name, PICTURE_STEP, f"pictures/{name}.png", size, "png", f"s{name}", created_at=at, used_at=at)
    return replace(state, **changes)  # type: ignore[arg-type]


def names(states: list[State]) -> list[str]:
    return [state.entry_id for state in states]


def test_the_first_to_come_are_the_first_to_go_beyond_the_count() -> None:
    window = Window(Fifo(), replace(ROOMY, max_count=3), [picture(name, at) for at, name in enumerate("abc")])
    assert names(window.make_room(2, 200, now=10.0)) == ["a", "b"]
    window.insert(picture("d", 11.0))
    window.insert(picture("e", 12.0))
    assert names(window.make_room(0, 0, now=13.0)) == []
    assert len(window.shelf) == 3


def test_beyond_the_bytes() -> None:
    window = Window(Fifo(), replace(ROOMY, max_bytes=300), [picture("a", 1.0, 200), picture("b", 2.0, 50)])
    assert names(window.make_room(1, 100, now=3.0)) == ["a"]
    assert window.shelf.bytes == 50


def test_beyond_the_age_whatever_the_policy_is() -> None:
    window = Window(Lru(), replace(ROOMY, max_age_s=60.0), [picture("used", 0.0, used_at=99.0), picture("new", 50.0)])
    assert names(window.make_room(0, 0, now=100.0)) == ["used"]
    assert names(window.make_room(0, 0, now=110.0)) == []
    assert names(window.make_room(0, 0, now=110.1)) == ["new"]
    assert len(window.shelf) == 0


def test_what_left_before_its_time_is_not_evicted_twice() -> None:
    window = Window(Fifo(), replace(ROOMY, max_age_s=60.0), [picture("a", 0.0), picture("b", 1.0)])
    window.shelf.remove(("a", PICTURE_STEP))
    assert names(window.make_room(0, 0, now=100.0)) == ["b"]


def test_what_left_by_its_policy_is_not_kept_for_its_age() -> None:
    for max_age_s in (0.0, 60.0):
        window = Window(Lru(), replace(ROOMY, max_count=2, max_age_s=max_age_s), [picture("used", 0.0, used_at=9e9)])
        for number in range(1000):
            window.make_room(1, 100, now=1.0)
            window.insert(picture(f"p{number}", 1.0))
        assert len(window.shelf) == 2
        assert len(window._arrived) <= (100 if max_age_s else 0)


def test_one_that_came_back_is_as_old_as_it_is() -> None:
    window = Window(Lru(), replace(ROOMY, max_age_s=60.0), [picture("old", 0.0), picture("new", 50.0)])
    (old,) = window.make_room(0, 0, now=100.0)
    window.insert(old)  # its eviction failed
    assert names(window.make_room(0, 0, now=101.0)) == ["old"]


def test_other_policies_keep_what_is_used() -> None:
    often, once = picture("often", 1.0, uses=9), picture("once", 2.0, uses=1)
    assert names(Window(Lcbfu(), replace(ROOMY, max_count=2), [often, once]).make_room(1, 1, now=3.0)) == ["once"]
    assert names(Window(Fifo(), replace(ROOMY, max_count=2), [often, once]).make_room(1, 1, now=3.0)) == ["often"]


def test_a_picture_larger_than_the_window_costs_only_itself() -> None:
    assert set(last_that_fit([100, 100, 5000], Limits(max_count=2, max_bytes=1000))) == {0, 1}


def test_a_batch_larger_than_the_window_keeps_its_last_pictures() -> None:
    assert last_that_fit([100, 100, None, 90], replace(ROOMY, max_count=2)) == {1: 100, 3: 90}
    assert set(last_that_fit([100, 100, 100], replace(ROOMY, max_bytes=150))) == {2}
    assert last_that_fit([100, 100], replace(ROOMY, max_count=0)) == {}
    assert last_that_fit([], ROOMY) == {}
