"""Jobs whose workers crash: they run alone, and are given up where the fleet does not explain the crashes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from services.gpu_worker.service import GpuWorkerService
from shared.domain.types import Job, JobState
from tests.unit.gpu_worker.worker import SLOW, WorkerBench, running_worker


async def crashed(bench: WorkerBench, together: int, alone: int = 0) -> Job:
    """A job whose worker crashed so often, beside other jobs and while the job ran alone."""
    job = await bench.accept(steps=20)
    for number in range(together + alone):
        assert await bench.jobs.claim(job.id, "dead", 60, number >= together)
        await bench.jobs.recover()
    return await bench.jobs.get(job.id)


async def test_a_job_seen_at_two_crashes_rides_alone_and_after_three_more_it_fails(slow: WorkerBench) -> None:
    job = await crashed(slow, 2)
    await slow.send(job)
    await slow.until(lambda row: row.state is JobState.RUNNING and row.attempt == 4, job.id)
    others = [await slow.accept(steps=20) for _ in range(2)]
    for one in others:
        await slow.send(one)
    alone, *rest = await asyncio.gather(*(slow.final(one.id) for one in (job, *others)))
    assert alone.state is JobState.SUCCEEDED
    assert all(one.updated_at > alone.updated_at for one in rest)

    cursed = await crashed(slow, 2, 3)
    await slow.send(cursed)
    done = await slow.final(cursed.id)
    assert done.state is JobState.FAILED
    assert done.error.startswith("its worker crashed 5 times, 3 of them in the 0 s that the job ran alone; ")


async def test_crashes_beside_other_jobs_condemn_nobody(slow: WorkerBench) -> None:
    suspect = await crashed(slow, 10)
    await slow.send(suspect)
    done = await slow.final(suspect.id)
    assert (done.state, done.crashes, done.crashes_alone) == (JobState.SUCCEEDED, 10, 0)


async def test_crashes_that_the_fleet_explains_condemn_nobody(slow: WorkerBench) -> None:
    """A worker of somebody else's crashes every two seconds or so."""
    healthy = await crashed(slow, 2, 3)
    await slow.backends.catalog._database.write(
        lambda connection: connection.execute(
            sa.text("UPDATE jobs SET alone_s = 5, exposed_s = 9, exposed_from = 1 WHERE id = :id"), {"id": healthy.id}
        )
    )
    for number in range(20):
        for more_s in (0.0, 2.0):
            await slow.jobs.report_worker(f"dead-{number}", more_s, 0.001)
    await slow.send(healthy)
    done = await slow.final(healthy.id)
    assert (done.state, done.crashes, done.crashes_alone) == (JobState.SUCCEEDED, 5, 3)


async def test_a_job_that_runs_alone_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """Under frequent crashes it gets further each time, and its seconds alone are counted apart."""
    async with running_worker(tmp_path, SLOW, checkpoint_every_steps=5) as bench:
        suspect = await crashed(bench, 2)
        other = await bench.accept(steps=20)
        await bench.send(suspect)
        row = await bench.until(lambda row: row.checkpoint_step >= 10, suspect.id)
        assert row.attempt == 4
        await bench.jobs.recover()  # the worker seems to die
        await bench.send(suspect)
        await bench.send(other)
        done, beside = await asyncio.gather(*(bench.final(one.id) for one in (suspect, other)))
        assert done.result is not None
        assert (done.state, done.result.steps_run) == (JobState.SUCCEEDED, 20 - row.checkpoint_step)
        assert (done.crashes, done.crashes_alone) == (3, 1)
        assert 0.1 < done.alone_s <= done.exposed_s
        assert beside.alone_s == beside.crashes_alone == 0


async def test_a_worker_reports_while_it_holds_a_job_and_its_end_is_no_crash(tmp_path: Path) -> None:
    async with running_worker(tmp_path, SLOW, lease_s=0.3) as bench:
        await asyncio.sleep(0.2)
        assert (await bench.jobs.fleet(0.0)).busy_s == 0
        await bench.draw(steps=40)  # .8 s
        async with asyncio.timeout(5):
            while (fleet := await bench.jobs.fleet(0.0)).busy_s < 0.8:
                await asyncio.sleep(0.05)
        assert fleet.busy_s < 2.0
        job = await bench.accept(steps=400)
        await bench.send(job)
        await bench.until(lambda row: row.state is JobState.RUNNING, job.id)
        await asyncio.sleep(0.2)
        await bench.service.drain(0.0)
        await bench.service.stop()
        ended = await bench.jobs.fleet(0.0)
        await asyncio.sleep(0.4)
        assert (await bench.jobs.fleet(0.0)).crashes == 0
        assert ended.busy_s > fleet.busy_s


async def test_what_waits_beside_a_job_that_rides_alone_is_not_there_when_the_worker_crashes(slow: WorkerBench) -> None:
    suspect, other = await crashed(slow, 2), await slow.accept(steps=20)
    await slow.send(suspect)
    await slow.until(lambda row: row.state is JobState.RUNNING and row.attempt == 4, suspect.id)
    await slow.send(other)
    await asyncio.sleep(0.1)
    assert (await slow.jobs.get(suspect.id)).state is JobState.RUNNING
    assert ((row := await slow.jobs.get(other.id)).state, row.attempt) == (JobState.QUEUED, 0)
    await slow.final(other.id)


async def test_a_job_that_must_ride_alone_is_nobodys_until_the_others_are_done(slow: WorkerBench) -> None:
    suspect, other = await crashed(slow, 2), await slow.accept(steps=20)
    await slow.send(other)
    await slow.until(lambda row: row.state is JobState.RUNNING, other.id)
    await slow.send(suspect)
    await slow.until(lambda row: row.attempt == 3, suspect.id)  # it was looked at
    await slow.until(lambda row: row.state is JobState.QUEUED, suspect.id)
    await asyncio.sleep(0.1)
    assert (await slow.jobs.get(other.id)).state is JobState.RUNNING
    assert ((row := await slow.jobs.get(suspect.id)).state, row.attempt) == (JobState.QUEUED, 3)
    done = await slow.final(suspect.id)
    assert (done.state, done.attempt, done.crashes) == (JobState.SUCCEEDED, 4, 2)


@pytest.fixture
async def two(slow: WorkerBench) -> AsyncIterator[WorkerBench]:
    """A second worker in the same process."""
    beside = GpuWorkerService(2, slow.service._process)
    await beside.start(slow.context)
    yield slow
    await beside.drain(0.0)
    await beside.stop()


async def test_no_other_worker_of_the_process_has_a_job_beside_one_that_runs_alone(two: WorkerBench) -> None:
    suspect = await crashed(two, 2)
    await two.send(suspect)
    await two.until(lambda row: row.state is JobState.RUNNING and row.attempt == 4, suspect.id)
    others = [await two.accept(steps=5) for _ in range(4)]
    for other in others:
        await two.send(other)
    alone, *rest = [await two.final(job.id) for job in (suspect, *others)]
    assert alone.state is JobState.SUCCEEDED
    assert all(job.updated_at > alone.updated_at for job in rest)


async def test_the_crash_of_a_process_is_one_however_many_workers_it_has(two: WorkerBench) -> None:
    """Else the workers beside would crash as often as a job that kills the process, and explain that for ever."""
    jobs = [await two.accept(steps=200) for _ in range(12)]
    for job in jobs:
        await two.send(job)
    async with asyncio.timeout(20):
        while sum(claims.holds for claims in two.service._process.claims) < 2:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    crashes = 0
    async with asyncio.timeout(20):
        while not crashes:  # it lives on, and may report itself between the two
            await two.jobs.recover()  # as the start after its end does
            crashes = (await two.jobs.fleet(0.0)).crashes
    assert crashes == 1
    for job in jobs:
        await two.jobs.cancel(job.id)
