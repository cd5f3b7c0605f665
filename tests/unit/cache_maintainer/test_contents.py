"""What becomes of finished pictures: which states are kept, and what leaves for them, in serving and in replays."""

from __future__ import annotations

from services.cache_maintainer.admission import admit, keeping, offer_of
from services.cache_maintainer.contents import CacheContents, fitting
from services.cache_maintainer.eviction.scored import Fifo, Offer, StateStore, Wished
from services.cache_maintainer.eviction.window import Limits, Window
from shared.domain.types import PICTURE_STEP, State
from tests.unit.cache_maintainer.test_admission import job


def offer(name: str, *, steps: tuple[int, ...] = (5, 10), size: int = 100, picture: int | None = None) -> Offer:
    return Offer(name, "u", 0, steps, (size,) * len(steps), 1.0, picture_bytes=picture)


def put(held: CacheContents, one: Offer, steps: tuple[int, ...], at: float = 1.0) -> None:
    for step in steps:
        size = one.picture_bytes if step == PICTURE_STEP else one.state_bytes
        held.put(State(one.entry_id, step, "", size or 0, "", "", 0, at, at))


def names(states: list[State]) -> list[tuple[str, int]]:
    return [(state.entry_id, state.step) for state in states]


def test_a_batch_larger_than_the_budget_keeps_what_saves_most() -> None:
    batch = [offer("j"), offer("k")]
    assert [one.steps for one in fitting(batch, 250)] == [(10,), (10,)]
    assert [(one.steps, one.sizes) for one in fitting([offer("j")], 0)] == [((), ())]
    assert fitting(batch, 400) == batch
    assert fitting([], 100) == []


def test_of_latents_of_unequal_sizes_the_largest_step_that_fits_stays() -> None:
    uneven = Offer("a", "u", 0, (5, 10, 15), (50, 60, 200), 1.0)
    (kept,) = fitting([uneven], 120)
    assert (kept.steps, kept.sizes) == ((5, 10), (50, 60))
    assert uneven.bytes_of((5, 15)) == 250
    assert uneven.state_bytes == 200


def test_latents_leave_for_latents_and_pictures_for_pictures() -> None:
    held = CacheContents(StateStore(Fifo()), Window(Fifo(), Limits(max_count=2, max_bytes=1000)), max_bytes=400)
    for at, name in enumerate("abc", 1):
        one = offer(name, picture=30)
        (steps,), victims = held.take_in([one], float(at))
        assert steps == (PICTURE_STEP, 5, 10)
        put(held, one, steps, at)
        assert names(victims) == ([("a", 5), ("a", 10), ("a", PICTURE_STEP)] if name == "c" else [])
    assert held.alive("b")
    assert not held.alive("a")
    assert (held.latents.bytes, len(held.pictures.shelf) if held.pictures else 0) == (400, 2)


def test_a_picture_too_many_costs_no_latents() -> None:
    held = CacheContents(StateStore(Fifo()), Window(Fifo(), Limits(max_count=1, max_bytes=1000)), max_bytes=1000)
    kept, victims = held.take_in([offer("a", picture=30), offer("b", picture=30), offer("c")], 1.0)
    assert kept == [(5, 10), (PICTURE_STEP, 5, 10), (5, 10)]
    assert victims == []


def test_the_policy_hears_of_every_lookup_before_it_lets_in_what_came_of_it() -> None:
    class Listening(StateStore):
        def __init__(self) -> None:
            super().__init__(Fifo())
            self.heard: list[tuple[list[Wished], float, int]] = []

        def looked_up(self, wishes: object, at: float, total: int = 50, pair: object = ()) -> None:
            self.heard.append((list(wishes), at, total))  # type: ignore[call-overload]

        def admit(self, offer: Offer, max_bytes: int) -> tuple[int, ...]:
            return offer.steps[-1:] if len(self.heard) == 2 else ()

    shelf = Listening()
    held = CacheContents(shelf, None, 1000)
    nothing = Offer("a", "u", 20, (), (), 3.0, 10)
    kept, _ = held.take_in([nothing, offer("b", picture=30)], 3.0)
    assert shelf.heard == [([], 3.0, 10), ([], 1.0, 50)]
    assert kept == [(), (10,)]  # without a window no picture is kept


def test_a_batch_that_is_tried_again_is_decided_once_until_it_is_settled() -> None:
    held = CacheContents(StateStore(Fifo()), None, 250)
    assert held.take_in([offer("a")], 1.0).kept == [(5, 10)]
    # beside another one there is no room for all that was let in
    assert held.take_in([offer("a"), offer("b")], 2.0).kept == [(10,), (10,)]
    held.settled("b")
    assert held.take_in([offer("b")], 3.0).kept == [(5, 10)]


def test_what_the_maintainer_keeps_of_an_entry_is_what_was_decided() -> None:
    done = job()
    entry = admit(done, picture=True)
    assert entry is not None
    asked = offer_of(entry, done, 2.0)
    assert (asked.steps, asked.sizes, asked.picture_bytes) == ((5, 10), (100, 100), 10)
    assert [state.step for state in keeping(entry, (PICTURE_STEP, 10)).states] == [PICTURE_STEP, 10]
    assert keeping(entry, ()).states == ()
