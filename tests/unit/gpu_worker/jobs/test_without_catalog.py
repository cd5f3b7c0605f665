"""A worker that alone loses the catalog for longer than a lease: what it drew is another's, and it comes back by
itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from services.gpu_worker.jobs import catalog_gate as aside_module
from services.gpu_worker.jobs import endings as endings_module
from services.gpu_worker.service import GpuWorkerService
from shared.catalog import Catalog
from shared.catalog.engines.around import DatabaseAround
from shared.catalog.engines.database import R
from shared.domain.errors import UnavailableError
from shared.domain.messages import JobSucceeded, Progress
from shared.domain.types import Job, JobState
from tests.unit.gpu_worker.worker import SLOW, WorkerBench, running_worker

LEASE_S = 0.6


class Cut(DatabaseAround):
    """The same rows, for one worker alone, over a line that can be cut."""

    away = False

    def _check(self) -> None:
        if self.away:
            raise UnavailableError("the catalog does not answer", retry_after_s=0.01)

    async def _asked(self, ask: Callable[[], Awaitable[R]]) -> R:
        self._check()
        return await super()._asked(ask)


@dataclass
class Pair:
    """The bench, with whose worker all is well, and another worker that can be cut off."""

    bench: WorkerBench
    cut: Cut
    lonely: GpuWorkerService

    def names(self, worker: GpuWorkerService, job: Job) -> bool:
        """Whether this worker had the job last."""
        return job.worker.endswith(worker.worker)


@pytest.fixture
async def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    monkeypatch.setattr(aside_module, "AGAIN_S", 0.01)
    monkeypatch.setattr(endings_module, "CATALOG_RETRY_S", 0.05)
    async with running_worker(tmp_path, SLOW, lease_s=LEASE_S, checkpoint_every_steps=5) as bench:
        cut = Cut(bench.backends.catalog._database)
        lonely = GpuWorkerService(2)
        await lonely.start(replace(bench.context, backends=replace(bench.backends, catalog=Catalog(cut))))
        try:
            yield Pair(bench, cut, lonely)
        finally:
            cut.away = False
            await lonely.drain(0.1)
            await lonely.stop()


async def test_its_job_is_drawn_elsewhere_and_its_own_picture_of_it_goes(pair: Pair) -> None:
    bench = pair.bench
    await bench.service._tasks.lanes.pause()
    job = await bench.accept(steps=60)
    await bench.send(job)
    await bench.until(lambda row: row.checkpoint_step > 0, job.id)
    pair.cut.away = True
    await _swept_up(bench, job.id)
    await bench.service._tasks.lanes.begin(bench.service._tasks.lanes.lanes)
    await bench.send(job)
    done = await bench.final(job.id)
    assert (done.state, done.attempt, done.failures) == (JobState.SUCCEEDED, 2, 0)
    assert pair.names(bench.service, done)
    (told,) = await bench.told(JobSucceeded, job.id)
    await _until(lambda: pair.lonely._tasks.attempts != {} and _stored(bench, f"pictures/{job.id}-1.png"))
    pair.cut.away = False
    await _until(lambda: not pair.lonely._tasks.lanes.in_hand)
    assert (await bench.jobs.get(job.id)) == done
    assert {fact.picture_key for fact in bench.heard(JobSucceeded, job.id)} <= {told.picture_key, ""}
    assert await bench.keys("pictures/") == [f"pictures/{job.id}-2.png"]
    assert await bench.keys("checkpoints/") == []
    assert await bench.keys("states/") == []  # those before the checkpoint were the first attempt's


async def test_it_leaves_tasks_to_others_and_takes_them_again_once_the_catalog_is_back(pair: Pair) -> None:
    bench = pair.bench
    await bench.service._tasks.lanes.pause()
    pair.cut.away = True
    taken = await bench.accept(steps=2)
    await bench.send(taken)
    await _until(lambda: pair.lonely._tasks.lanes._aside)
    await bench.service._tasks.lanes.begin(bench.service._tasks.lanes.lanes)
    drawn = await asyncio.gather(bench.final(taken.id), *(bench.draw(steps=2) for _ in range(8)))
    assert {(job.state, job.attempt, job.crashes, job.failures) for job in drawn} == {(JobState.SUCCEEDED, 1, 0, 0)}
    assert all(pair.names(bench.service, job) for job in drawn)
    assert not pair.lonely._tasks.lanes.in_hand
    lone = await bench.accept(steps=2)
    await bench.service._tasks.lanes.pause()
    await bench.send(lone)
    pair.cut.away = False
    done = await bench.final(lone.id)
    assert (done.state, done.attempt, done.crashes) == (JobState.SUCCEEDED, 1, 0)
    assert pair.names(pair.lonely, done)


async def test_a_change_of_lanes_meanwhile_counts_once_it_is_back(pair: Pair) -> None:
    bench, taking = pair.bench, pair.lonely._tasks.lanes
    await bench.service._tasks.lanes.pause()
    pair.cut.away = True
    job = await bench.accept(steps=2)
    await bench.send(job)
    await _until(lambda: taking._aside)
    await taking.begin((*taking.lanes, "generate.other"))
    await asyncio.sleep(0.05)
    assert not bench.heard(Progress, job.id)
    pair.cut.away = False
    assert (await bench.final(job.id)).state is JobState.SUCCEEDED
    assert taking.lanes[-1] == "generate.other"
    await taking.stand_aside()
    await taking.pause()
    await taking.come_back()  # a drain that began meanwhile stands
    assert taking._loop is None


async def test_a_bus_that_does_not_let_it_come_back_is_asked_until_it_does(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog is back and the broker away, or in some trouble that nobody has thought of."""
    bench, taking = pair.bench, pair.lonely._tasks.lanes
    await bench.service._tasks.lanes.pause()
    pair.cut.away = True
    job = await bench.accept(steps=2)
    await bench.send(job)
    await _until(lambda: taking._aside)
    come_back, troubles = taking.come_back, [UnavailableError("the broker is away"), RuntimeError("a surprise")]

    async def at_last() -> None:
        if troubles:
            raise troubles.pop()
        await come_back()

    monkeypatch.setattr(taking, "come_back", at_last)
    pair.cut.away = False
    assert (await bench.final(job.id)).state is JobState.SUCCEEDED
    assert not troubles


async def test_once_it_has_drained_it_looks_after_no_catalog(pair: Pair) -> None:
    await pair.lonely.drain(0.1)
    pair.cut.away = True
    pair.lonely._tasks.gate.unanswered()
    await asyncio.sleep(0.05)
    assert pair.lonely._tasks.gate._aside is None or pair.lonely._tasks.gate._aside.done()


async def _swept_up(bench: WorkerBench, job_id: str) -> None:
    async with asyncio.timeout(20):
        while not any(job.id == job_id for job in await bench.jobs.to_requeue(unconfirmed_after_s=60.0)):
            await asyncio.sleep(0.02)


def _stored(bench: WorkerBench, key: str) -> bool:
    return (bench.settings.data_dir / "blobs" / key).exists()


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.01)
