"""A job's row is written before its task is sent, and confirmed after that; an error stops the rest."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shared.bus.inprocess import InProcessBus
from shared.domain.errors import UnavailableError
from shared.domain.messages import GenerateImage
from shared.domain.types import Job, JobState, Plan, PlanSource, Request, Size, Source
from shared.service.dispatch import dispatch

PLAN = Plan(PlanSource.LATENT, "large", 5, sources=(Source("e", "s", "f00d"),))
JOB = Job("a", Request("a fox", Size(64, 64), 50, 2.5, 7, frames=3), PLAN, JobState.QUEUED, lane="generate.large")


@pytest.mark.parametrize(
    ("mine", "broker", "effects"),
    [
        (True, True, ["row", "task", "confirmed"]),
        (True, False, ["row"]),
        (False, True, ["row"]),
    ],
)
async def test_first_the_row_then_the_task_then_the_confirmation(
    mine: bool, broker: bool, effects: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, seen = InProcessBus(), list[str]()
    send = bus.send

    async def noted(lane: str, message: GenerateImage, *, priority: int = 0) -> None:
        if not broker:
            raise UnavailableError("the broker is away")
        seen.append("task")
        await send(lane, message, priority=priority)

    async def row() -> bool:
        seen.append("row")
        return mine

    async def confirm(job_ids: Sequence[str]) -> None:
        assert job_ids == ["a"]
        seen.append("confirmed")

    monkeypatch.setattr(bus, "send", noted)
    done = await dispatch(bus, JOB, confirm, write=row(), previews=True)
    assert seen == effects
    assert (done.written, done.error is None) == (mine, broker)
    if "task" in effects:
        receiver = await bus.receive(["generate.large"], prefetch=1)
        assert (await receiver.get()).message == GenerateImage("a", "s", "f00d", True, 3)
        await receiver.close()
    await bus.close()


async def test_a_task_without_its_confirmation_is_said_to_be_sent() -> None:
    async def confirm(_: Sequence[str]) -> None:
        raise UnavailableError("the catalog is away")

    bus = InProcessBus()
    done = await dispatch(bus, JOB, confirm)
    assert (done.written, done.sent, done.trouble) == (True, True, "task not confirmed; the sweeper sends it")
    assert isinstance(done.error, UnavailableError)
    await bus.close()
