"""A job that kills its worker is found, its client is told at once, and an operator can release it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from services.gpu_worker.families.noop import NoopFamily
from shared.catalog import open_catalog
from shared.client import AsyncClient
from shared.domain.errors import JobFailedError
from shared.domain.messages import JobFailed
from shared.domain.types import Job, JobState
from shared.runtime.settings import Settings
from tests.faults.lives import KILLS
from tests.faults.load import Load
from tests.faults.test_kill_9 import killed, lives
from tests.flows.house import SLOW, house

__all__ = ["killed"]
ENOUGH = 10
"""Crashes within which a job that kills its worker is found."""


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_job_that_really_kills_its_worker_is_found_and_the_others_are_drawn(
    killed: Settings, workers: int
) -> None:
    killed = killed.model_copy(update={"workers": workers})  # of one process, which dies as a whole
    requests = {"killer": {"prompt": f"a fox that {KILLS}", "steps": 10, "seed": 1}}
    requests |= {f"healthy-{n}": {"prompt": f"a cube number {n}", "steps": 10, "seed": n} for n in range(6)}
    load = Load([killed.listen, killed.listen], requests, random.Random(1))
    async with lives(killed) as process:
        pid = await process.live()
        running = asyncio.create_task(load.run(4))
        born = 1
        while not running.done() and born <= 3 * ENOUGH:
            await asyncio.sleep(0.05)
            if not _alive(pid):
                await process.ended()
                pid, born = await process.live(), born + 1
        await asyncio.wait_for(running, 60)
        os.kill(pid, signal.SIGTERM)
        while _alive(pid):
            await asyncio.sleep(0.05)
    catalog = await open_catalog(killed.catalog_url)
    jobs, _ = await catalog.jobs.list(limit=100)
    states = {job.request.prompt: job.state for job in jobs}
    (killer,) = [job for job in jobs if KILLS in job.request.prompt]
    assert load.failed == ["killer"]
    assert load.done == 6
    assert states.pop(killer.request.prompt) is JobState.FAILED
    assert set(states.values()) == {JobState.SUCCEEDED}
    assert killer.crashes <= ENOUGH
    assert killer.error.startswith(f"its worker crashed {killer.crashes} times, {killer.crashes_alone} of them in ")
    assert await catalog.jobs.reopen(killer.id)
    free = await catalog.jobs.get(killer.id)
    assert (free.state, free.crashes, free.crashes_alone) == (JobState.QUEUED, 0, 0)
    await catalog.close()


def _alive(pid: int) -> bool:
    """Whether the process of this id has not ended; its parent waits for it at once."""
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


async def test_the_load_counts_a_job_that_failed_for_good_as_lost_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked again under its key, the gateway gives the same answer for ever."""
    settings = Settings(data_dir=tmp_path, large=SLOW, metrics_listen="", max_attempts=1)
    decode = NoopFamily.decode
    monkeypatch.setattr(NoopFamily, "decode", lambda self, latent: 1 / 0)
    async with house(settings) as it:
        requests = {name: {"prompt": name, "steps": 5, "seed": 1, "cache": "off"} for name in ("first", "second")}
        load = Load([it.process.address] * 2, requests, random.Random(1))
        running = asyncio.create_task(load.run(1))
        async with asyncio.timeout(20):
            while not load.failed:
                await asyncio.sleep(0.01)
        monkeypatch.setattr(NoopFamily, "decode", decode)
        await asyncio.wait_for(running, 20)
    assert load.failed == ["first"]
    assert {key: len(answers) for key, answers in load.every_answer.items()} == {"first": 0, "second": 1}
    assert load.done == 1


@pytest.mark.parametrize("event", ["published", "lost"])
async def test_a_client_that_waits_is_told_at_once_that_its_job_failed(tmp_path: Path, event: str) -> None:
    settings = Settings(data_dir=tmp_path, large="noop:?step_ms=200", metrics_listen="")
    async with house(settings) as it, AsyncClient(it.process.address) as patient:
        waiting = asyncio.create_task(patient.generate("a fox", steps=100, cache="off", idempotency_key="k"))
        job = await _running(it.backends.catalog.jobs)
        assert await it.backends.catalog.jobs.fail(job.id, job.attempt, "its worker crashed 5 times", final=True)
        failed = time.monotonic()
        if event == "published":
            await it.backends.bus.publish(JobFailed(job.id, job.attempt, "its worker crashed 5 times"))
        for asked in (waiting, patient.generate("a fox", steps=100, cache="off", idempotency_key="k")):
            with pytest.raises(JobFailedError, match=f"job {job.id} failed: its worker crashed 5 times"):
                await asyncio.wait_for(asked, 10)
        assert time.monotonic() - failed < 3.0, "a lost event is found by reading the row every second"


async def _running(jobs: object) -> Job:
    async with asyncio.timeout(20):
        while True:
            running, _ = await jobs.list(state=JobState.RUNNING, limit=1)  # type: ignore[attr-defined]
            if running:
                found: Job = running[0]
                return found
            await asyncio.sleep(0.01)
