"""Who joins and who leaves, without torch, time or threads."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from services.gpu_worker.engine.scheduler import decide

NOBODY: frozenset[str] = frozenset()


@dataclass(frozen=True)
class One:
    id: str
    arrived: int = 0
    model: str = "large"
    frames: int = 1
    pixels: int = 0
    priority: int = 0
    deadline_at: float | None = None
    drop_if_late: bool = False
    alone: bool = False


def test_first_come_first_served_up_to_the_free_rows() -> None:
    waiting = [One("c", 3), One("a", 1), One("b", 2)]
    assert decide(waiting, [One("x")], NOBODY, 0, 3).join == ("a", "b")


def test_priority_then_deadline_then_arrival() -> None:
    waiting = [
        One("late", 1),
        One("due", 2, deadline_at=9),
        One("sooner", 3, deadline_at=5),
        One("first", 4, priority=1),
    ]
    assert decide(waiting, [], NOBODY, 0, 8).join == ("first", "sooner", "due", "late")


def test_the_cancelled_and_the_late_make_room() -> None:
    running = [One("a"), One("b", deadline_at=1, drop_if_late=True)]
    decision = decide([One("c", 1), One("d", 2)], running, frozenset({"a"}), 2.0, 2)
    assert decision.cancel == ("a",)
    assert decision.late == ("b",)
    assert decision.join == ("c", "d")


def test_a_deadline_alone_drops_nobody() -> None:
    assert decide([One("a", deadline_at=1)], [], NOBODY, 2.0, 1).join == ("a",)


def test_alone_waits_for_an_empty_batch_and_nobody_overtakes_it() -> None:
    waiting = [One("alone", 1, alone=True), One("b", 2)]
    assert decide(waiting, [One("x")], NOBODY, 0, 4).join == ()
    assert decide(waiting, [], NOBODY, 0, 4).join == ("alone",)
    assert decide([One("b", 2)], [One("alone", alone=True)], NOBODY, 0, 4).join == ()


def test_those_before_the_lonely_one_go_first() -> None:
    waiting = [One("a", 1), One("alone", 2, alone=True), One("c", 3)]
    assert decide(waiting, [], NOBODY, 0, 4).join == ("a",)


def clip(name: str, arrived: int, frames: int = 16, model: str = "clips") -> One:
    return One(name, arrived, model, frames)


def test_frames_of_one_model_count_as_rows() -> None:
    waiting = [clip("a", 1), clip("b", 2), clip("short", 3, frames=4)]
    assert decide(waiting, [], NOBODY, 0, 32).join == ("a", "b")
    assert decide(waiting, [], NOBODY, 0, 36).join == ("a", "b", "short")
    assert decide(waiting[1:], [clip("a", 1)], NOBODY, 0, 20).join == ()  # the short clip overtakes no other
    assert decide(waiting[2:], [clip("a", 1)], NOBODY, 0, 20).join == ("short",)


def test_a_clip_longer_than_all_rows_runs_without_other_clips_and_beside_images() -> None:
    waiting = [clip("a", 1), clip("b", 2), One("image", 3), clip("other", 4, model="others")]
    assert decide(waiting, [], NOBODY, 0, 8).join == ("a", "image", "other")
    assert decide(waiting[1:3], [clip("a", 1)], NOBODY, 0, 8).join == ("image",)
    assert decide([clip("b", 2)], [One("image")], NOBODY, 0, 8).join == ("b",)
    assert decide([clip("b", 2)], [One("image")], NOBODY, 0, 1).join == ()


def test_pixels_of_one_model_stay_within_the_limit() -> None:
    waiting = [One("big", 1, pixels=9), One("small", 2, pixels=4), One("other", 3, "other", pixels=9), One("s", 4)]
    assert decide(waiting, [], NOBODY, 0, 8, 13).join == ("big", "small", "other", "s")
    assert decide(waiting, [], NOBODY, 0, 8, 12).join == ("big", "other")  # no later task overtakes `small`
    assert decide(waiting[1:], [One("big", pixels=9)], NOBODY, 0, 8, 12).join == ("other",)
    assert decide(waiting[:1], [], NOBODY, 0, 8, 5).join == ("big",)  # alone, a task runs at any size


ONES = st.builds(
    One,
    id=st.uuids().map(str),
    arrived=st.integers(0, 99),
    model=st.sampled_from(["large", "clips"]),
    frames=st.integers(1, 6),
    priority=st.integers(-2, 2),
    deadline_at=st.none() | st.floats(0, 10),
    drop_if_late=st.booleans(),
    alone=st.booleans(),
)


@given(waiting=st.lists(ONES, max_size=8), running=st.lists(ONES, max_size=4), data=st.data())
def test_never_too_many_never_the_gone_and_never_with_the_lonely(
    waiting: list[One], running: list[One], data: st.DataObject
) -> None:
    everyone = [*waiting, *running]
    cancelled = frozenset(data.draw(st.sets(st.sampled_from([one.id for one in everyone])))) if everyone else NOBODY
    decision = decide(waiting, running, cancelled, 5.0, 4)
    staying = [one for one in running if one.id not in {*decision.cancel, *decision.late}]
    joining = [one for one in waiting if one.id in decision.join]
    assert len(joining) == len(decision.join)
    assert len(staying) + len(joining) <= max(4, len(staying))
    assert not {*decision.join} & {*decision.cancel, *decision.late}
    for model in {one.model for one in joining}:
        beside = [one.frames for one in (*staying, *joining) if one.model == model]
        assert sum(beside) <= 4 or len(beside) == 1
    if any(one.alone for one in joining):
        assert len(joining) + len(staying) == 1
