"""Rows that are cancelled, late or failing end alone."""

from __future__ import annotations

import numpy as np
import pytest

from services.gpu_worker.engine import engine as engine_module
from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Advanced, Left
from services.gpu_worker.engine.rows import FromState
from services.gpu_worker.families.unet import UNetFamily
from shared.domain.errors import CancelledError, DeadlineError, ModelError
from tests.unit.gpu_worker.conftest import LoadFamily
from tests.unit.gpu_worker.engine.conftest import STEPS, drive, finished, solo, task


def test_cancel_leaves_the_others_untouched(load: LoadFamily) -> None:
    family = load(4)
    engine = Engine({"large": family}, max_rows=4, tell_every_s=0.0)
    for name, seed in (("a", 1), ("b", 2), ("c", 3)):
        engine.submit(task(name, seed=seed))
    events = engine.step() + engine.step()
    engine.cancel("b")
    engine.cancel("nobody")
    while not engine.idle:
        events += engine.step()
    (left,) = [event for event in events if isinstance(event, Left)]
    assert left.id == "b"
    assert isinstance(left.error, CancelledError)
    assert max(event.step for event in events if isinstance(event, Advanced) and event.id == "b") == 2
    for name, seed in (("a", 1), ("c", 3)):
        assert np.array_equal(finished(events)[name].latent, solo(family, task(seed=seed)).latent)


def test_a_waiting_task_is_cancelled_before_it_joins(family: UNetFamily) -> None:
    engine = Engine({"large": family}, max_rows=1)
    engine.submit(task("a"))
    engine.submit(task("b"))
    engine.step()
    engine.cancel("b")
    events = engine.step()
    assert [event.id for event in events if isinstance(event, Left)] == ["b"]
    assert engine.rows == 1


def test_the_late_are_dropped_only_when_they_asked_for_it(family: UNetFamily) -> None:
    now = [0.0]
    engine = Engine({"large": family}, max_rows=4, clock=lambda: now[0])
    engine.submit(task("dropped", deadline_at=5.0, drop_if_late=True))
    engine.submit(task("kept", deadline_at=5.0))
    engine.step()
    now[0] = 6.0
    (left,) = [event for event in engine.step() if isinstance(event, Left)]
    assert left.id == "dropped"
    assert isinstance(left.error, DeadlineError)
    assert engine.rows == 1


def test_a_task_that_cannot_start_fails_alone(family: UNetFamily) -> None:
    wrong_shape = FromState(np.zeros((4, 8, 8), np.float32), 3)
    too_far = FromState(np.zeros((4, 16, 16), np.float32), STEPS)
    tasks = [task("shape", start=wrong_shape), task("far", start=too_far), task("model", model="other"), task("fine")]
    events = drive(family, [(0, one) for one in tasks])
    reasons = {event.id: str(event.error) for event in events if isinstance(event, Left)}
    assert "(4, 8, 8)" in reasons["shape"]
    assert "from 0 to 9" in reasons["far"]
    assert "'other' is not loaded" in reasons["model"]
    assert set(finished(events)) == {"fine"}


def test_a_row_that_breaks_the_forward_fails_alone(family: UNetFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    step = type(family).step

    def breaks(self: UNetFamily, rows: list[object]) -> object:
        if any(row.task.id == "bad" for row in rows):  # type: ignore[attr-defined]
            raise RuntimeError("no memory")
        return step(self, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(type(family), "step", breaks)
    events = drive(family, [(0, task("bad")), (0, task("good"))])
    (left,) = [event for event in events if isinstance(event, Left)]
    assert (left.id, str(left.error)) == ("bad", "no memory")
    assert set(finished(events)) == {"good"}


def test_a_preview_that_fails_costs_only_the_preview(family: UNetFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(self: UNetFamily, clean: object) -> object:
        raise RuntimeError("no memory for a preview")

    monkeypatch.setattr(type(family), "preview", breaks)
    events = drive(family, [(0, task("seen", preview=True)), (0, task("unseen"))])
    assert set(finished(events)) == {"seen", "unseen"}
    told = [event for event in events if isinstance(event, Advanced) and event.id == "seen"]
    assert len(told) == STEPS
    assert all(event.preview is None for event in told)


def test_a_latent_that_cannot_leave_the_device_is_its_rows_trouble_alone(
    family: UNetFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(latent: object) -> object:
        raise RuntimeError("no memory to copy to")

    engine = Engine({"large": family}, tell_every_s=1e9)
    engine.submit(task("captured", capture_steps=(1,)))
    engine.submit(task("plain"))
    with monkeypatch.context() as broken:
        broken.setattr(engine_module, "off_device", breaks)
        (left,) = [event for event in engine.step() if isinstance(event, Left)]
    assert (left.id, str(left.error)) == ("captured", "no memory to copy to")
    assert engine.rows == 1


def test_numbers_that_are_not_finite_are_an_error_not_a_picture(family: UNetFamily) -> None:
    start = FromState(np.full((4, 16, 16), np.nan, np.float32), 5)
    (left,) = [event for event in drive(family, [(0, task(start=start))]) if isinstance(event, Left)]
    assert isinstance(left.error, ModelError)
    assert "not finite" in str(left.error)


def test_one_id_cannot_ride_twice(family: UNetFamily) -> None:
    engine = Engine({"large": family})
    engine.submit(task("a"))
    with pytest.raises(ModelError, match="'a' is in the engine already"):
        engine.submit(task("a"))
