"""What a client was promised, or waits for, does not depend on what the bus takes of the rest (design §8, Accept)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from shared.client import Accepted, Picture, Progress
from shared.errors import UnavailableError
from shared.messages import JobCancelled, JobQueued, Message, StateLost, StateUsed
from shared.types import JobState, PlanSource
from tests.flows.conftest import Make
from tests.flows.house import SLOW, House, house

HINTS = (JobQueued, StateUsed, StateLost)


def refuse(it: House, monkeypatch: pytest.MonkeyPatch, kinds: Sequence[type[Message]]) -> list[Message]:
    """The bus takes none of these facts any more; those that it did not take."""
    bus, refused = it.backends.bus, list[Message]()
    publish = bus.publish

    async def published(message: Message) -> None:
        if isinstance(message, tuple(kinds)):
            refused.append(message)
            raise UnavailableError("connection lost")
        await publish(message)

    monkeypatch.setattr(bus, "publish", published)
    return refused


def refuse_tasks(it: House, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """The bus does not take the next tasks."""
    bus, left = it.backends.bus, [times]
    send = bus.send

    async def sent(lane: str, message: Message, **how: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise UnavailableError("connection lost")
        await send(lane, message, **how)

    monkeypatch.setattr(bus, "send", sent)


async def test_a_hint_that_the_bus_does_not_take_fails_no_request(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    async with house(make(large="noop:")) as it:
        refused = refuse(it, monkeypatch, HINTS)
        first = await it.generate("a red fox", seed=1)
        again = await it.generate("a red fox", seed=1)
        assert again.plan.source is PlanSource.EXACT
        assert again.png == first.png
        await it.backends.blobs.delete([again.plan.state_key])
        drawn = await it.generate("a red fox", seed=1)
        assert drawn.png
        assert drawn.plan.source is not PlanSource.EXACT
    assert {type(fact) for fact in refused} == set(HINTS)


async def test_a_job_is_cancelled_also_when_nobody_can_be_told(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    async with house(make(large=SLOW)) as it:
        refused = refuse(it, monkeypatch, [JobCancelled])
        stream = it.client.generate_stream("a red fox", steps=500)
        accepted = await anext(stream)
        assert isinstance(accepted, Accepted)
        assert (await it.client.cancel(accepted.job_id)).job.state is JobState.CANCELLED
        await stream.aclose()
    assert JobCancelled(accepted.job_id) in refused


async def test_a_task_that_the_bus_does_not_take_is_swept_up_while_its_client_waits(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(make(large="noop:", sweep_s=0.3)) as it:
        refuse_tasks(it, monkeypatch, times=1)
        picture = await it.client.generate("a red fox", steps=5)
        assert (picture.job.state, picture.job.attempt) == (JobState.SUCCEEDED, 1)


async def test_acceptance_is_not_said_before_the_bus_has_the_task(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    async with house(make(large=SLOW, sweep_s=0.3)) as it:
        refuse_tasks(it, monkeypatch, times=1)
        told: list[tuple[Any, JobState]] = []
        async for event in it.client.generate_stream("a red fox", steps=20):
            job_id = event.job.id if isinstance(event, Picture) else event.job_id
            told.append((event, (await it.backends.catalog.jobs.get(job_id)).state))
        kinds = [type(event) for event, _ in told]
        assert kinds[0] is Accepted
        assert told[0][1] is not JobState.QUEUED  # a worker has it
        assert kinds.count(Accepted) == 1
        assert set(kinds[1:-1]) <= {Progress}
        assert kinds[-1] is Picture
