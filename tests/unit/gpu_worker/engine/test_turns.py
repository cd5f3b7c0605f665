"""Models that share a batch take turns by time, so that short steps do not wait for as many long ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import BatchRan, Event, Finished
from services.gpu_worker.engine.rows import Row, Stepped
from services.gpu_worker.families.noop import NoopFamily
from shared.models import find_card
from tests.unit.gpu_worker.engine.conftest import task


class Clocked(NoopFamily):
    """A model whose steps take `step_s` seconds of a clock of their own."""

    def __init__(self, now: list[float], step_s: float) -> None:
        super().__init__(find_card("noop:"), torch.device("cpu"), 0.0, 0.0)
        self._now, self._took = now, step_s

    def step(self, rows: Sequence[Row]) -> list[Stepped]:
        self._now[0] += self._took
        return super().step(rows)


def test_an_image_waits_no_longer_for_clips_than_its_own_steps_take() -> None:
    now = [0.0]
    families = {"large": Clocked(now, 0.01), "clips": Clocked(now, 0.1)}
    engine, events, ended = Engine(families, clock=lambda: now[0]), list[Event](), dict[str, float]()

    def run(until: str) -> None:
        while until not in ended:
            events.extend(new := engine.step())
            ended.update({event.id: now[0] for event in new if isinstance(event, Finished)})

    for name in ("clip", "other"):
        engine.submit(task(name, model="clips", frames=4, steps=20))
    for number in range(10):
        engine.submit(task(str(number), steps=10))
        run(str(number))
    assert ended["9"] < 10 * 10 * 0.01 * 2 + 0.1
    run("clip")
    ran = [event.seconds for event in events if isinstance(event, BatchRan) and event.model == "clips"]
    assert ran == pytest.approx([0.1] * 20)
    assert ended["clip"] == ended["other"] == pytest.approx(20 * 0.1 + 10 * 10 * 0.01)
