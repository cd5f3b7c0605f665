"""The engine with the slack scheduler, on the tiny model: who overtakes, what is learned, and the same images."""

from __future__ import annotations

import numpy as np
import pytest

from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Event, Finished, Joined, Left
from services.gpu_worker.engine.rows import FromState
from services.gpu_worker.engine.schedulers import ByPriority, BySlack, Scheduler
from services.gpu_worker.engine.step_seconds import StepSeconds
from services.gpu_worker.families.unet import UNetFamily
from services.gpu_worker.models.step_profile import scheduler_of
from shared.domain.errors import ModelError
from shared.domain.types import Size
from shared.models import find_card
from shared.models.k_table import NoProfiles
from shared.models.standalone import Line
from shared.models.step_regression import mix_of
from shared.runtime.settings import Settings
from tests.unit.gpu_worker.conftest import LoadFamily
from tests.unit.gpu_worker.engine.conftest import STEPS, finished, solo, task


def run(engine: Engine) -> list[Event]:
    events: list[Event] = []
    while not engine.idle:
        events += engine.step()
    return events


def order(events: list[Event]) -> list[str]:
    return [event.id for event in events if isinstance(event, Joined)]


def second_per_step() -> StepSeconds:
    return StepSeconds(Line(1.0, 1e-9))


@pytest.mark.parametrize(
    ("scheduler", "expected"),
    [
        (ByPriority(), ["first", "soon", "hit", "whole", "plain"]),
        (BySlack({"large": second_per_step()}), ["first", "whole", "soon", "hit", "plain"]),
    ],
)
def test_a_row_with_a_deadline_overtakes_by_slack(
    family: UNetFamily, scheduler: Scheduler, expected: list[str]
) -> None:
    """With a step a second: `whole` needs 10 s of 15, `soon` 4 s of 12, `hit` 1 s of 14."""
    engine = Engine({"large": family}, max_rows=1, clock=lambda: 0.0, scheduler=scheduler)
    state = np.zeros(family.latent_shape(Size(64, 64)), np.float32)
    engine.submit(task("first"))
    engine.step()
    engine.submit(task("plain"))
    engine.submit(task("hit", start=FromState(state, STEPS - 1), deadline_at=14.0))
    engine.submit(task("whole", deadline_at=15.0))
    engine.submit(task("soon", start=FromState(state, STEPS - 4), deadline_at=12.0))
    assert order(run(engine)) == expected[1:]


def test_a_row_is_kept_out_of_a_batch_that_it_would_make_late(load: LoadFamily) -> None:
    family = load(4)
    scheduler = BySlack({"large": second_per_step()})
    engine = Engine({"large": family}, max_rows=4, clock=lambda: 0.0, scheduler=scheduler)
    engine.submit(task("tight", deadline_at=10.5))  # ten steps of a second, and no second size beside it
    events = engine.step()
    engine.submit(task("wide", size=Size(64, 32), seed=9))
    engine.submit(task("same", seed=8))
    events += run(engine)
    ends = [event.id for event in events if isinstance(event, Finished)]
    assert order(events) == ["tight", "wide", "same"]
    assert ends[0] == "tight"
    for name, seed, size in (("tight", 7, Size(64, 64)), ("wide", 9, Size(64, 32)), ("same", 8, Size(64, 64))):
        assert np.array_equal(finished(events)[name].latent, solo(family, task(seed=seed, size=size)).latent)


def test_steps_that_ran_correct_the_prediction(family: UNetFamily) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 0.25  # read twice around a step, so a step takes at least that
        return now[0]

    predicted = second_per_step()
    engine = Engine({"large": family}, max_rows=2, clock=clock, scheduler=BySlack({"large": predicted}))
    engine.submit(task("guided"))
    engine.submit(task("plain", guidance=1.0))
    run(engine)
    assert predicted.of(mix_of([((64, 64, 1), 3)])) == pytest.approx(0.25)
    assert predicted.of(mix_of([((64, 64, 1), 1)])) == pytest.approx(0.25, rel=0.01)


def test_a_task_of_a_model_that_is_not_loaded_still_fails_alone(family: UNetFamily) -> None:
    engine = Engine({"large": family}, scheduler=BySlack())
    engine.submit(task("other", model="elsewhere", deadline_at=1.0, drop_if_late=False))
    engine.submit(task("fine"))
    assert set(finished(run(engine))) == {"fine"}


async def test_the_setting_chooses_the_scheduler() -> None:
    card = find_card("bundled:large")
    assert isinstance(await scheduler_of(Settings(), NoProfiles(), [card]), ByPriority)
    assert isinstance(await scheduler_of(Settings(scheduler="slack"), NoProfiles(), [card]), BySlack)


def test_a_row_that_was_set_aside_goes_on_bit_identical(load: LoadFamily) -> None:
    family = load(4)
    engine = Engine({"large": family}, max_rows=1, clock=lambda: 0.0, scheduler=aside_scheduler())
    engine.submit(task("patient"))
    events = [*engine.step(), *engine.step()]
    engine.submit(task("urgent", seed=8, deadline_at=STEPS + 1.0))
    events += engine.step()
    assert (engine.rows, engine.idle) == (1, False)
    engine.preview("patient")  # known while it is aside
    events += run(engine)
    assert [event.id for event in events if isinstance(event, Finished)] == ["urgent", "patient"]
    for name, seed in (("patient", 7), ("urgent", 8)):
        assert np.array_equal(finished(events)[name].latent, solo(family, task(seed=seed)).latent)


def test_a_row_that_is_aside_can_be_cancelled_and_abandoned(family: UNetFamily) -> None:
    for end in ("cancel", "abandon"):
        engine = Engine({"large": family}, max_rows=1, clock=lambda: 0.0, scheduler=aside_scheduler())
        engine.submit(task("patient"))
        engine.step()
        engine.submit(task("urgent", deadline_at=STEPS + 1.0))
        engine.step()
        with pytest.raises(ModelError, match="in the engine already"):
            engine.submit(task("patient"))
        if end == "cancel":
            engine.cancel("patient")
            left = [event for event in run(engine) if isinstance(event, Left)]
        else:
            left = [event for event in engine.abandon(ModelError("broken")) if isinstance(event, Left)]
        assert "patient" in {event.id for event in left}
        assert engine.idle


def aside_scheduler() -> BySlack:
    return BySlack({"large": second_per_step()}, set_aside=True)
