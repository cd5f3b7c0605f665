"""The end of a job survives a full disk, a full catalog and a lost answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import structlog

from services.gpu_worker.families.noop import NoopFamily
from shared.domain.errors import StorageFullError, UnavailableError
from shared.domain.messages import GenerateImage, JobSucceeded
from shared.domain.types import JobState
from tests.unit.gpu_worker.worker import SLOW, WorkerBench, running_worker


@pytest.mark.usefixtures("plain_logs")
async def test_a_failure_whose_commit_only_lost_its_answer_is_buried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_worker(tmp_path, SLOW, max_attempts=1) as bench:
        fail = bench.jobs.fail
        unheard: list[bool] = []

        async def connection_breaks(*given: Any, final: bool) -> bool:
            won = await fail(*given, final=final)
            if not unheard:
                unheard.append(won)
                raise UnavailableError("connection lost")
            return bool(won)

        monkeypatch.setattr(bench.jobs, "fail", connection_breaks)
        monkeypatch.setattr(NoopFamily, "decode", lambda self, latent: 1 / 0)
        job = await bench.draw(steps=2)
        await bench.idle()
        assert (job.state, unheard) == (JobState.FAILED, [True])
        (letter,) = await bench.backends.bus.dead_letters()
        assert (letter.message, "ZeroDivisionError" in letter.reason) == (GenerateImage(job.id, only=True), True)


async def test_a_full_disk_loses_nothing(bench: WorkerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    put = bench.blobs.put
    refused: list[str] = []

    async def full_for_a_while(key: str, data: bytes, **more: Any) -> str:
        if key.startswith("pictures/") and len(refused) < 5:
            refused.append(key)
            raise StorageFullError("no room", retry_after_s=0.01)
        return await put(key, data, **more)

    monkeypatch.setattr(bench.blobs, "put", full_for_a_while)
    job = await bench.draw()
    assert (job.state, job.attempt, job.failures, job.crashes) == (JobState.SUCCEEDED, 6, 0, 0)
    await bench.idle()
    assert await bench.backends.bus.dead_letters() == []
    assert len(await bench.keys("pictures/")) == 1
    assert len(await bench.keys("states/")) == 2


async def test_a_full_catalog_delays_the_end_of_a_job_and_costs_no_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease runs out meanwhile, as on a disk where it cannot be renewed either."""
    async with running_worker(tmp_path, SLOW, lease_s=0.2) as bench:
        finish, tried = bench.jobs.finish, asyncio.Event()

        async def full(*_: object, **__: object) -> bool:
            tried.set()
            raise StorageFullError("the disk is full", retry_after_s=30.0)

        monkeypatch.setattr(bench.jobs, "finish", full)
        monkeypatch.setattr(bench.jobs, "renew", full)
        job = await bench.accept(steps=2)
        await bench.send(job)
        await asyncio.wait_for(tried.wait(), 20)
        with structlog.testing.capture_logs() as said:
            await asyncio.sleep(0.4)
        assert sum(one["event"] == "lease not renewed" for one in said) <= 1  # of six times
        assert (await bench.jobs.get(job.id)).state is JobState.RUNNING
        monkeypatch.setattr(bench.jobs, "finish", finish)
        done = await bench.final(job.id)
        assert (done.state, done.attempt, done.crashes) == (JobState.SUCCEEDED, 1, 0)
        assert (await bench.picture(done)).shape == (64, 64, 3)


@pytest.mark.usefixtures("plain_logs")
async def test_a_full_catalog_delays_a_failure_too(slow: WorkerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    fail = slow.jobs.fail
    refused: list[bool] = []

    async def full_at_first(*given: Any, final: bool) -> bool:
        refused.append(final)
        if len(refused) <= 5:
            raise StorageFullError("the disk is full", retry_after_s=30.0)
        return await fail(*given, final=final)

    monkeypatch.setattr(slow.jobs, "fail", full_at_first)
    monkeypatch.setattr(NoopFamily, "decode", lambda self, latent: 1 / 0)
    job = await slow.draw(steps=2)
    assert (job.state, job.attempt, job.failures, job.crashes) == (JobState.FAILED, 3, 3, 0)
    assert len(refused) == 5 + 3


async def test_a_commit_that_only_lost_its_answer_keeps_its_picture(
    slow: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = slow.jobs.finish
    unheard: list[bool] = []

    async def connection_breaks(*given: Any) -> bool:
        won = await finish(*given)
        if not unheard:
            unheard.append(won)
            raise UnavailableError("connection lost")
        return bool(won)

    monkeypatch.setattr(slow.jobs, "finish", connection_breaks)
    job = await slow.draw(steps=2)
    await slow.told(JobSucceeded, job.id)
    await slow.idle()
    assert unheard == [True]
    assert (await slow.picture(job)).shape == (64, 64, 3)
