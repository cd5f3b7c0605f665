"""The events and warnings of a step."""

from __future__ import annotations

from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Advanced, BatchRan, Event, Joined, LatentCaptured
from services.gpu_worker.families.unet import UNetFamily
from tests.unit.gpu_worker.engine.conftest import STEPS, drive, task


def test_what_a_step_tells(family: UNetFamily) -> None:
    seen, unseen = task("a", capture_steps=(2, 10), preview=True), task("b", guidance=1.0)
    events = drive(family, [(0, seen), (3, unseen)])
    assert [event.step for event in events if isinstance(event, LatentCaptured)] == [2, 10]
    assert [event.step for event in events if isinstance(event, Advanced) and event.id == "a"] == list(range(1, 11))
    assert {event.rows for event in events if isinstance(event, BatchRan)} == {1, 2}
    assert [(event.id, event.step) for event in events if isinstance(event, Joined)] == [("a", 0), ("b", 0)]
    previews = [event.preview for event in events if isinstance(event, Advanced) and event.preview is not None]
    assert previews
    assert previews[0].shape == (16, 16, 3)
    assert not [event for event in events if isinstance(event, Advanced) and event.id == "b" and event.preview]


def test_previews_may_be_asked_for_before_and_while_a_row_rides(family: UNetFamily) -> None:
    engine = Engine({"large": family}, tell_every_s=0.0)
    for name in ("waiting", "riding", "unseen"):
        engine.submit(task(name))
    engine.preview("waiting")
    events = engine.step()
    engine.preview("riding")
    engine.preview("nobody's")
    while not engine.idle:
        events += engine.step()
    seen: dict[str, list[bool]] = {event.id: [] for event in events if isinstance(event, Advanced)}
    for event in events:
        if isinstance(event, Advanced):
            seen[event.id].append(event.preview is not None)
    assert seen == {"waiting": [True] * STEPS, "riding": [False] + [True] * (STEPS - 1), "unseen": [False] * STEPS}


def test_progress_is_told_at_its_pace(family: UNetFamily) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 0.01
        return now[0]

    engine = Engine({"large": family}, tell_every_s=1e9, clock=clock)
    engine.submit(task("quiet", preview=True))
    events: list[Event] = []
    while not engine.idle:
        events += engine.step()
    assert not [event for event in events if isinstance(event, Advanced)]
    told = [event for event in drive(family, [(0, task())]) if isinstance(event, Advanced)]
    assert len(told) == STEPS


def test_a_prompt_the_encoder_cannot_take_in_is_a_warning(family: UNetFamily) -> None:
    joined = next(
        event for event in drive(family, [(0, task(prompt="word " * 30, steps=1))]) if isinstance(event, Joined)
    )
    assert joined.warnings == ("prompt: only the first 22 of 120 tokens were read",)


def test_a_negative_prompt_that_is_too_long_is_warned_of_by_its_own_name(family: UNetFamily) -> None:
    asked = task(negative_prompt="word " * 30, steps=1, guidance=2.0)
    joined = next(event for event in drive(family, [(0, asked)]) if isinstance(event, Joined))
    assert joined.warnings == ("negative_prompt: only the first 22 of 120 tokens were read",)
