"""What a worker makes of claims without an answer, and of leases that ran out while it lived."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from services.gpu_worker.jobs import endings as endings_module
from services.gpu_worker.jobs.crash_evidence import CRASHES_TOGETHER
from shared.domain.errors import UnavailableError
from shared.domain.messages import (
    GenerateImage,
    Progress,
    lane_of,
)
from shared.domain.types import Job, JobState
from tests.unit.gpu_worker.worker import SLOW, WorkerBench, running_worker


async def test_a_worker_that_lives_through_an_outage_of_the_catalog_is_no_crash_of_its_job(
    slow: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease runs out unrenewed, and somebody else notices before the worker does that the catalog is back."""
    renew, tried = slow.jobs.renew, asyncio.Event()

    async def away(*_: object) -> bool:
        tried.set()
        raise UnavailableError("the catalog is away")

    monkeypatch.setattr(slow.jobs, "renew", away)
    job = await slow.accept(steps=200)
    await slow.send(job)
    await asyncio.wait_for(tried.wait(), 20)
    await _let_lease_run_out(slow, job.id)
    (requeued,) = await slow.jobs.to_requeue(unconfirmed_after_s=60.0)
    assert (requeued.id, requeued.crashes) == (job.id, 1)
    monkeypatch.setattr(slow.jobs, "renew", renew)
    await slow.until(lambda row: row.crashes == 0, job.id)
    await slow.jobs.cancel(job.id)


async def test_a_worker_that_was_heard_all_the_time_takes_no_crash_back(slow: WorkerBench) -> None:
    """What made it lose its lease may well be the job: it must count, or such a job goes round for ever."""
    job = await slow.accept(steps=200)
    await slow.send(job)
    await slow.until(lambda row: bool(slow.heard(Progress, row.id)), job.id)
    async with asyncio.timeout(20):
        await _let_lease_run_out(slow, job.id)
        while not await slow.jobs.to_requeue(unconfirmed_after_s=60.0):  # the worker may renew it in between
            await _let_lease_run_out(slow, job.id)
        while slow.service._tasks.attempts_at(job.id):
            await asyncio.sleep(0.01)
    await slow.jobs.cancel(job.id)
    await slow.idle()
    assert (await slow.jobs.get(job.id)).crashes == 1


async def test_a_lost_claim_whose_task_does_not_come_back_is_repaired(
    slow: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went to another worker, which can but wait for the lease."""
    claim = slow.jobs.claim

    async def connection_breaks(*given: Any) -> Job | None:
        await claim(*given)
        await slow.service._tasks.lanes.pause()
        raise UnavailableError("connection lost")

    monkeypatch.setattr(slow.jobs, "claim", connection_breaks)
    job = await slow.accept(steps=2)
    await slow.send(job)
    await slow.until(lambda row: row.state is JobState.RUNNING, job.id)
    back = await slow.until(lambda row: row.state is JobState.QUEUED, job.id)
    assert (back.attempt, back.crashes, back.failures) == (1, 0, 0)


async def test_a_worker_that_slept_longer_than_a_lease_claims_its_own_job_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A laptop that is closed: leases run out by the clock on the wall, and the sweeper wakes before the renewal."""
    async with running_worker(tmp_path, SLOW, lease_s=30.0, max_rows=2) as bench:
        job = await bench.accept(steps=40)
        await bench.send(job)
        await bench.until(lambda row: bool(bench.heard(Progress, row.id)), job.id)
        await _let_lease_run_out(bench, job.id)
        (requeued,) = await bench.jobs.to_requeue(unconfirmed_after_s=60.0)
        assert requeued.id == job.id
        await bench.send(job)
        done = await bench.final(job.id)
        await bench.idle()
        assert (done.state, done.attempt, done.failures) == (JobState.SUCCEEDED, 2, 0)
        assert bench.service._tasks.attempts == {}
        assert len(await bench.keys("pictures/")) == 1
        # every row is free again: two at once are drawn
        pair = await asyncio.gather(*(bench.draw(steps=2) for _ in range(2)))
        assert [one.state for one in pair] == [JobState.SUCCEEDED] * 2


async def _let_lease_run_out(bench: WorkerBench, job_id: str) -> None:
    def expire(connection: Any) -> None:
        connection.execute(sa.text("UPDATE jobs SET lease_until = 1 WHERE id = :id"), {"id": job_id})

    await bench.backends.catalog._database.write(expire)


@pytest.mark.usefixtures("plain_logs")
async def test_a_claim_that_only_lost_its_answer_is_no_crash(
    slow: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before its lease, of a minute, runs out."""
    claim, unheard = slow.jobs.claim, list[Job | None]()

    async def connection_breaks(*given: Any) -> Job | None:
        row = await claim(*given)
        if not unheard:
            unheard.append(row)
            raise UnavailableError("connection lost")
        return row

    monkeypatch.setattr(endings_module, "RETRY_S", 0.01)
    monkeypatch.setattr(slow.jobs, "claim", connection_breaks)
    job = await slow.draw(steps=2)
    assert unheard[0] is not None
    assert (job.state, job.attempt, job.crashes, job.failures) == (JobState.SUCCEEDED, 2, 0, 0)


@pytest.mark.usefixtures("plain_logs")
@pytest.mark.parametrize("what", ["its answer is lost", "it was cancelled meanwhile"])
async def test_a_job_that_must_ride_alone_is_let_go_of_with_its_task(
    slow: WorkerBench, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """It is claimed, looked at and released; where that release hits no row its task must not stay in hand."""
    monkeypatch.setattr(endings_module, "RETRY_S", 0.01)
    release, tried = slow.jobs.release, list[bool]()

    async def in_trouble(job_id: str, attempt: int) -> bool:
        tried.append(True)
        if len(tried) == 1 and what == "it was cancelled meanwhile":
            await slow.jobs.cancel(job_id)
        done: bool = await release(job_id, attempt)
        if len(tried) == 1 and what == "its answer is lost":
            raise UnavailableError("connection lost")
        return done

    job = await slow.accept(steps=2)
    for _ in range(CRASHES_TOGETHER):
        assert await slow.jobs.claim(job.id, "dead", 60)
        await slow.jobs.recover()
    monkeypatch.setattr(slow.jobs, "release", in_trouble)
    await slow.send(job)
    done = await slow.final(job.id)
    assert done.state is (JobState.SUCCEEDED if what == "its answer is lost" else JobState.CANCELLED)
    await slow.idle()
    await slow.service._tasks.lanes.close(1.0)  # what is in hand would go back to its lane
    receiver = await slow.backends.bus.receive([lane_of(slow.model)], prefetch=1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await receiver.get()


async def test_a_claim_cancelled_half_way_is_handed_back(slow: WorkerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    claim, claimed = slow.jobs.claim, asyncio.Event()

    async def answers_late(*given: Any) -> Job | None:
        row = await claim(*given)
        claimed.set()
        await asyncio.sleep(0.2)
        return row

    monkeypatch.setattr(slow.jobs, "claim", answers_late)
    job = await slow.accept()
    await slow.send(job)
    await asyncio.wait_for(claimed.wait(), 10)
    await slow.service.drain(0.0)
    row = await slow.jobs.get(job.id)
    assert (row.state, row.attempt, row.crashes) == (JobState.QUEUED, 1, 0)
    receiver = await slow.backends.bus.receive([lane_of(slow.model)], prefetch=1)
    async with asyncio.timeout(1):
        assert (await receiver.get()).message == GenerateImage(job.id)
