"""A client's promise and result do not depend on hints that the bus loses (docs/architecture.md, Delivery rules)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from shared.client import Accepted, Picture, Progress
from shared.domain.errors import (
    AfterimageError,
    ConfigurationError,
    OverloadedError,
    StorageFullError,
    UnavailableError,
)
from shared.domain.messages import JobCancelled, JobQueued, Message, StateLost, StateUsed
from shared.domain.types import Job, JobState, PlanSource
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


def refuse_tasks(
    it: House, monkeypatch: pytest.MonkeyPatch, times: int, error: type[Exception] = UnavailableError
) -> None:
    """The bus does not take the next tasks."""
    bus, left = it.backends.bus, [times]
    send = bus.send

    async def sent(lane: str, message: Message, **how: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise error("bus_url: refused")
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
        told: list[tuple[Any, Job]] = []
        async for event in it.client.generate_stream("a red fox", steps=20):
            job_id = event.job.id if isinstance(event, Picture) else event.job_id
            told.append((event, await it.backends.catalog.jobs.get(job_id)))
        kinds = [type(event) for event, _ in told]
        assert kinds[0] is Accepted
        assert told[0][1].promised
        assert kinds.count(Accepted) == 1
        assert set(kinds[1:-1]) <= {Progress}
        assert kinds[-1] is Picture


NEVER_S = 600.0


@pytest.mark.parametrize("full", [False, True])
async def test_a_retry_is_not_told_either_before_the_bus_has_the_task(
    make: Make, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    """Not beyond max_queued either, where a retry takes up what was accepted. Nobody draws here: it goes on waiting."""
    settings = make(large=SLOW, sweep_s=NEVER_S, max_queued=1 if full else 100)
    async with house(settings, without=["gpu_worker"]) as it:
        jobs = it.backends.catalog.jobs
        same: dict[str, Any] = {"idempotency_key": "mine", "seed": 1}

        async def first_event() -> Accepted:
            event = await anext(it.client.generate_stream("a red fox", **same))
            assert isinstance(event, Accepted)
            return event

        refuse_tasks(it, monkeypatch, times=1)
        first = asyncio.create_task(first_event())
        (job,) = await _rows(it)
        if full:
            with pytest.raises(OverloadedError):
                await it.client.generate("a blue fox")
        again = asyncio.create_task(first_event())
        done, _ = await asyncio.wait([first, again], timeout=1.5)  # longer than a gateway waits to look at the row
        assert not done
        await jobs.confirm([job.id])  # as the sweeper does that has sent it
        told = await asyncio.wait_for(asyncio.gather(first, again), 10)
        assert [(event.job_id, event.queue_position) for event in told] == [(job.id, 0)] * 2
        assert (await jobs.get(job.id)).state is JobState.QUEUED


async def _rows(it: House) -> list[Job]:
    while True:
        jobs, _ = await it.backends.catalog.jobs.list()
        if jobs:
            return list(jobs)
        await asyncio.sleep(0.02)


async def test_a_lane_that_the_bus_refuses_is_named_and_its_job_kept(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(make(large="noop:", sweep_s=0.3)) as it:
        refuse_tasks(it, monkeypatch, times=1, error=ConfigurationError)
        with pytest.raises(AfterimageError, match=r"bus_url.*is kept") as refused:
            await asyncio.wait_for(it.client.generate("a red fox", steps=5), 10)
        (job,) = await _rows(it)
        assert job.id in str(refused.value)
        async with asyncio.timeout(20):  # what was wrong is mended, and it is swept up
            while (await it.backends.catalog.jobs.get(job.id)).state is not JobState.SUCCEEDED:
                await asyncio.sleep(0.05)


async def test_a_full_broker_refuses_new_work_and_serves_repeats(make: Make) -> None:
    async with house(make(large="noop:")) as it:
        first = await it.generate("a red fox", seed=1)
        it.backends.bus.full = "the broker at rabbit:5672 takes no messages"
        with pytest.raises(StorageFullError, match="message broker's disk or memory is full") as full:
            await it.client.generate("a blue fox", seed=2)
        assert full.value.retry_after_s
        assert (await it.generate("a red fox", seed=1)).png == first.png
        it.backends.bus.full = ""
        assert (await it.generate("a blue fox", seed=2)).png
