"""A worker takes the most urgent job of its lane, whichever task it received, and the delivery rules hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.gpu_worker.jobs import endings, tasks
from services.gpu_worker.service import GpuWorkerService
from shared.catalog.jobs.urgent import Urgent
from shared.domain.errors import ModelError
from shared.domain.messages import GenerateImage, JobSucceeded
from shared.domain.types import Job, JobState
from tests.unit.gpu_worker.worker import WorkerBench, running_worker

SLOW = "noop:?step_ms=4"
"""40 ms a job."""


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[WorkerBench]:
    async with running_worker(tmp_path / "data", SLOW, max_rows=1, lane_order="urgent", lease_s=0.6) as running:
        yield running


async def busy(bench: WorkerBench) -> Job:
    """A job that holds the only row."""
    first = await bench.accept(steps=30)
    await bench.send(first)
    return await bench.until(lambda job: job.state is JobState.RUNNING, first.id)


async def in_order_of_claims(bench: WorkerBench, *jobs: Job) -> list[str]:
    for job in jobs:
        await bench.final(job.id)
    rows = [await bench.jobs.get(job.id) for job in jobs]
    assert all(row.state is JobState.SUCCEEDED for row in rows)
    return [row.id for row in sorted(rows, key=lambda row: row.exposed_from)]


async def test_the_most_urgent_job_is_taken_whichever_task_came(bench: WorkerBench) -> None:
    await busy(bench)
    limits = (None, 500.0, 50.0, 200.0)
    jobs = [await bench.accept(deadline_s=limit) for limit in limits]
    for job in jobs:
        await bench.send(job)
    patient, loose, tight, middle = (job.id for job in jobs)
    assert await in_order_of_claims(bench, *jobs) == [tight, middle, loose, patient]
    await bench.idle()
    assert [len(bench.heard(JobSucceeded, job.id)) for job in jobs] == [1, 1, 1, 1]
    assert [(await bench.jobs.get(job.id)).attempt for job in jobs] == [1, 1, 1, 1]


async def test_a_needless_task_only_repeats_the_event(bench: WorkerBench) -> None:
    await busy(bench)
    jobs = [await bench.accept(), await bench.accept(deadline_s=60.0)]
    for job in (*jobs, *jobs):  # the sweeper may send a task twice
        await bench.send(job)
    await in_order_of_claims(bench, *jobs)
    assert await bench.told(JobSucceeded, jobs[0].id, 2)
    await bench.idle()
    assert [(await bench.jobs.get(job.id)).attempt for job in jobs] == [1, 1]


async def test_a_job_that_failed_is_tried_again_by_a_task_of_its_own(
    bench: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt ran on the task of another job, which still waits."""
    monkeypatch.setattr(endings, "RETRY_S", 0.05)
    await busy(bench)
    patient, urgent = await bench.accept(), await bench.accept(deadline_s=60.0)
    fails_once(bench, monkeypatch, urgent.id)
    for job in (patient, urgent):
        await bench.send(job)
    assert await in_order_of_claims(bench, patient, urgent) == [urgent.id, patient.id]
    assert [(await bench.jobs.get(job.id)).attempt for job in (patient, urgent)] == [1, 2]


def fails_once(bench: WorkerBench, monkeypatch: pytest.MonkeyPatch, job_id: str) -> None:
    submit = bench.service._thread.submit
    failed = list[str]()

    def submitted(task: Any) -> None:
        if task.id.startswith(job_id) and not failed:
            failed.append(task.id)
            raise ModelError("a bad moment")
        submit(task)

    monkeypatch.setattr(bench.service._thread, "submit", submitted)


async def test_a_drain_hands_back_the_task_of_the_job_that_ran(tmp_path: Path) -> None:
    async with running_worker(tmp_path / "data", SLOW, max_rows=1, lane_order="urgent", sweep_s=3600.0) as bench:
        await busy(bench)
        patient, urgent = await bench.accept(steps=20), await bench.accept(deadline_s=60.0, steps=500)
        await bench.send(patient)  # the worker receives this one alone, and runs the other
        await bench.until(lambda job: job.state is JobState.RUNNING, urgent.id)
        await bench.service.drain(0.0)
        assert (await bench.jobs.get(urgent.id)).state is JobState.QUEUED
        receiver = await bench.backends.bus.receive([urgent.lane], prefetch=4)
        message = (await asyncio.wait_for(receiver.get(), 5.0)).message
        assert message == GenerateImage(urgent.id, only=True)
        await receiver.close()


async def test_a_killed_workers_job_and_the_one_of_its_task_both_finish(tmp_path: Path) -> None:
    """A worker dies with another job's task: the bus delivers that task again, and the sweeper sends the job's own."""
    changes: dict[str, Any] = {"max_rows": 1, "lane_order": "urgent", "lease_s": 0.3}
    async with running_worker(tmp_path / "data", SLOW, **changes) as bench:
        await bench.service.drain(0.0)
        patient, urgent = await bench.accept(), await bench.accept(deadline_s=60.0)
        for job in (patient, urgent):
            await bench.send(job)
        receiver = await bench.backends.bus.receive([patient.lane], prefetch=1)
        dead = await asyncio.wait_for(receiver.get(), 5.0)
        assert dead.message == GenerateImage(patient.id)
        assert await bench.jobs.claim_new(urgent.id, urgent.lane, "dead", 0.05, own_task=False)
        await receiver.close()  # as the broker does for a closed channel
        service = GpuWorkerService()
        await service.start(bench.context)
        try:
            await bench.final(patient.id)
            await asyncio.sleep(0.06)
            for job in await bench.jobs.to_requeue(unconfirmed_after_s=3600.0):
                await bench.backends.bus.send(job.lane, GenerateImage.of(job))
            await bench.final(urgent.id)
        finally:
            await service.drain(0.1)
            await service.stop()
        assert [(await bench.jobs.get(job.id)).state for job in (patient, urgent)] == [JobState.SUCCEEDED] * 2


async def test_a_cancelled_jobs_task_serves_the_others(bench: WorkerBench) -> None:
    await busy(bench)
    gone, stays = await bench.accept(deadline_s=50.0), await bench.accept()
    for job in (gone, stays):
        await bench.send(job)
    await bench.jobs.cancel(gone.id)
    assert (await bench.final(stays.id)).state is JobState.SUCCEEDED
    await bench.idle()


async def test_a_task_that_its_running_job_may_need_serves_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker lost its connection to the broker while it ran the task's own job, and then hands the job back."""
    monkeypatch.setattr(endings, "RETRY_S", 0.02)
    monkeypatch.setattr(endings, "BUSY_RETRY_S", 0.02)
    async with running_worker(tmp_path / "data", SLOW, max_rows=1, lane_order="urgent", sweep_s=3600.0) as bench:
        await bench.service.drain(0.0)
        cut_off, new = await bench.accept(), await bench.accept()
        await bench.send(cut_off)
        receiver = await bench.backends.bus.receive([cut_off.lane], prefetch=1)
        await asyncio.wait_for(receiver.get(), 5.0)
        assert await bench.jobs.claim_new(cut_off.id, cut_off.lane, "cut off", 60.0, own_task=True)
        await receiver.close()  # as the broker does for a lost connection
        await bench.send(new)
        service = GpuWorkerService()
        await service.start(bench.context)
        try:
            await bench.final(new.id)
            assert await bench.jobs.release(cut_off.id, 1)
            assert (await bench.final(cut_off.id)).state is JobState.SUCCEEDED
        finally:
            await service.drain(0.1)
            await service.stop()


async def test_a_failed_job_gets_its_dead_letter_although_others_wait(
    bench: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker died between the row and the dead letter, so the broker delivers the task again."""
    monkeypatch.setattr(endings, "DEAD_LETTER_GRACE_S", 0.0)
    await bench.service.drain(0.0)
    failed, new = await bench.accept(), await bench.accept()
    await bench.send(failed)
    receiver = await bench.backends.bus.receive([failed.lane], prefetch=1)
    await asyncio.wait_for(receiver.get(), 5.0)
    assert await bench.jobs.claim_new(failed.id, failed.lane, "dead", 60.0, own_task=True)
    assert await bench.jobs.fail(failed.id, 1, "no", final=True)
    await receiver.close()
    await bench.send(new)
    service = GpuWorkerService()
    await service.start(bench.context)
    try:
        await bench.final(new.id)
        await bench.until(lambda job: job.buried, failed.id)
    finally:
        await service.drain(0.1)
        await service.stop()
    (letter,) = await bench.backends.bus.dead_letters()
    assert letter.message == GenerateImage(failed.id)


def in_order(jobs: list[Job]) -> list[Job]:
    """The ids of these tests do not grow."""
    return sorted(jobs, key=lambda job: job.id)


@pytest.mark.parametrize("order", ["arrival", "urgent"])
async def test_tenants_take_turns_whatever_waits_before_them(tmp_path: Path, order: str) -> None:
    """A flood waits in front. The tenant behind it catches up with the work that the flood's tenant got before."""
    async with running_worker(tmp_path / "data", SLOW, max_rows=1, lane_order=order) as bench:
        await busy(bench)  # 30 steps, of the tenant with the flood
        flood = in_order([await bench.accept() for _ in range(6)])
        small = in_order([await bench.accept(tenant="small") for _ in range(4)])
        await asyncio.sleep(0.1)  # longer than a lane counts as one tenant's
        for job in (*flood, *small):
            await bench.send(job)
        claimed = await in_order_of_claims(bench, *flood, *small)
        assert claimed[:3] == [job.id for job in small[:3]]
        assert [name for name in claimed if name in {job.id for job in flood}] == [job.id for job in flood]
        assert claimed.index(small[3].id) <= 4
        await bench.idle()  # each task served one job
        assert [(await bench.jobs.get(name)).attempt for name in claimed] == [1] * 10
        assert [len(bench.heard(JobSucceeded, name)) for name in claimed] == [1] * 10


async def test_a_task_whose_job_another_task_served_is_not_lost(tmp_path: Path) -> None:
    """The other tenant has gone when the left task comes, so that the lane's own order is right again."""
    async with running_worker(tmp_path / "data", SLOW, max_rows=1, sweep_s=3600.0) as bench:
        await busy(bench)
        flood, small = in_order([await bench.accept() for _ in range(3)]), await bench.accept(tenant="small")
        await asyncio.sleep(0.1)
        for job in (flood[0], small, *flood[1:]):
            await bench.send(job)
        assert await in_order_of_claims(bench, *flood, small) == [small.id, *(job.id for job in flood)]
        await bench.idle()


async def test_a_lane_is_read_unless_rows_had_room_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, looks = Urgent.next_of_each, list[str]()

    async def noted(jobs: Urgent, lane: str, *rest: Any) -> dict[str, list[str]]:
        looks.append(lane)
        return await read(jobs, lane, *rest)

    monkeypatch.setattr(Urgent, "next_of_each", noted)
    monkeypatch.setattr(tasks, "ROOM_S", 0.05)
    async with running_worker(tmp_path / "data", SLOW, max_rows=3, lane_order="urgent") as bench:
        await asyncio.sleep(0.1)
        for _ in range(2):
            job = await bench.accept(steps=50)
            await bench.send(job)
            await bench.until(lambda job: job.state is JobState.RUNNING, job.id)
        assert looks == []
        third = await bench.accept()
        await bench.send(third)
        await bench.final(third.id)
        assert looks == [third.lane]  # it filled the rows


async def test_free_rows_get_the_most_urgent_jobs_of_a_backlog(tmp_path: Path) -> None:
    async with running_worker(tmp_path / "data", SLOW, max_rows=3, lane_order="urgent") as bench:
        await bench.service.drain(0.0)
        jobs = [await bench.accept(deadline_s=limit) for limit in (None, None, None, 500.0, 50.0, 200.0)]
        for job in jobs:
            await bench.send(job)
        service = GpuWorkerService()
        await service.start(bench.context)
        try:
            order = await in_order_of_claims(bench, *jobs)
        finally:
            await service.drain(0.1)
            await service.stop()
        assert {*order[:3]} == {job.id for job in jobs[3:]}


async def test_rows_that_read_the_lane_at_once_leave_no_job_behind(tmp_path: Path) -> None:
    """All see the same few jobs. Those that find each of them in the hands of another row must look again."""
    rows: dict[str, Any] = {"max_rows": 32, "lane_order": "urgent", "sweep_s": 3600.0, "lease_s": 60.0}
    async with running_worker(tmp_path / "data", "noop:?step_ms=1", **rows) as bench:
        jobs = [await bench.accept(deadline_s=5000.0 - number) for number in range(160)]
        for job in jobs:
            await bench.send(job)
        for job in jobs:
            await bench.final(job.id)
        await bench.idle()
        assert {(await bench.jobs.get(job.id)).attempt for job in jobs} == {1}
