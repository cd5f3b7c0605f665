"""The window of pictures: by count and by bytes, in order of arrival or by another policy."""

from __future__ import annotations

from dataclasses import replace

from services.cache_maintainer.eviction.scored import Fifo, Lcbfu
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
    assert names(window.make_room(2, 200)) == ["a", "b"]
    window.insert(picture("d", 11.0))
    window.insert(picture("e", 12.0))
    assert names(window.make_room(0, 0)) == []
    assert len(window.shelf) == 3


def test_beyond_the_bytes() -> None:
    window = Window(Fifo(), replace(ROOMY, max_bytes=300), [picture("a", 1.0, 200), picture("b", 2.0, 50)])
    assert names(window.make_room(1, 100)) == ["a"]
    assert window.shelf.bytes == 50


def test_an_image_that_was_removed_is_not_evicted_again() -> None:
    window = Window(Fifo(), replace(ROOMY, max_count=1), [picture("a", 0.0), picture("b", 1.0)])
    window.shelf.remove(("a", PICTURE_STEP))
    assert names(window.make_room(1, 100)) == ["b"]


def test_other_policies_keep_what_is_used() -> None:
    often, once = picture("often", 1.0, uses=9), picture("once", 2.0, uses=1)
    assert names(Window(Lcbfu(), replace(ROOMY, max_count=2), [often, once]).make_room(1, 1)) == ["once"]
    assert names(Window(Fifo(), replace(ROOMY, max_count=2), [often, once]).make_room(1, 1)) == ["often"]


def test_a_picture_larger_than_the_window_costs_only_itself() -> None:
    assert set(last_that_fit([100, 100, 5000], Limits(max_count=2, max_bytes=1000))) == {0, 1}


def test_a_batch_larger_than_the_window_keeps_its_last_pictures() -> None:
    assert last_that_fit([100, 100, None, 90], replace(ROOMY, max_count=2)) == {1: 100, 3: 90}
    assert set(last_that_fit([100, 100, 100], replace(ROOMY, max_bytes=150))) == {2}
    assert last_that_fit([100, 100], replace(ROOMY, max_count=0)) == {}
    assert last_that_fit([], ROOMY) == {}
