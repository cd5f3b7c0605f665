"""Killed at any point and started again: finished pictures are there, running jobs run again, nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from scripts.stack.servers import free_port
from shared.catalog import open_catalog
from shared.client import Accepted, AsyncClient
from shared.domain.errors import DataDirectoryLockedError
from shared.domain.types import Job, JobState, PlanSource
from shared.runtime.addresses import unreachable
from tests.flows.conftest import Make
from tests.flows.house import house

START_S = 120.0
"""Importing torch on a busy machine."""


@contextlib.asynccontextmanager
async def up(data_dir: Path, port: int, tiny: Path, large: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`afterimage up` in a process of its own, serving when the block begins."""
    options = {"data-dir": data_dir, "listen": f"127.0.0.1:{port}", "metrics-listen": "", "large": large}
    options |= {"encoder": tiny / "clip", "torch-threads": 1, "log-level": "error"}
    arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services", "up", *arguments, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(START_S):
            while await unreachable(f"127.0.0.1:{port}") is not None:
                assert process.returncode is None, "afterimage up ended"
                await asyncio.sleep(0.1)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_after_kill_9_finished_pictures_are_there_and_the_running_job_runs_again(
    tmp_path: Path, tiny: Path
) -> None:
    port, data = free_port(), tmp_path / "data"
    async with AsyncClient(f"127.0.0.1:{port}", retry_s=START_S) as client:
        async with up(data, port, tiny, "noop:?step_ms=50") as process:
            done = await client.generate("a finished picture", steps=2, seed=1)
            stream = client.generate_stream("a running one", steps=60, seed=2)
            running = await anext(stream)
            assert isinstance(running, Accepted)
            queued = [await anext(client.generate_stream(f"queued {n}", steps=2)) for n in range(2)]
            await asyncio.sleep(0.5)
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()
        assert (data / "running.json").exists()  # nobody cleaned up
        async with up(data, port, tiny, "noop:?step_ms=50") as process:
            events = [event async for event in stream]  # the same call, taken up again
            kept = await client.get_picture(done.job.id)
            again = await client.generate("a finished picture", steps=2, seed=1)
            ids = [event.job_id for event in queued if isinstance(event, Accepted)]
            pictures = [await _finished(client, job_id) for job_id in (running.job_id, *ids)]
            process.terminate()  # and this time it may say goodbye
            assert await asyncio.wait_for(process.wait(), 30) == 0
    assert not (data / "running.json").exists()

    assert kept.png == done.png
    assert again.plan.source is PlanSource.EXACT
    assert again.png == done.png
    assert events[-1].job.id == running.job_id  # type: ignore[union-attr]  # the last event is the picture
    assert len(pictures) == 3


async def _finished(client: AsyncClient, job_id: str) -> bytes:
    async with asyncio.timeout(30):
        while (view := await client.get_job(job_id)).job.state is not JobState.SUCCEEDED:
            assert not view.job.state.final, view.job
            await asyncio.sleep(0.05)
    return (await client.get_picture(job_id)).png


async def test_two_processes_never_share_a_data_directory(make: Make) -> None:
    settings = make(large="noop:")
    async with house(settings):
        with pytest.raises(DataDirectoryLockedError, match=str(settings.data_dir)):
            async with house(settings):
                pass
    async with house(settings) as it:  # and it is free again
        assert (await it.client.generate("alone", steps=2)).png


async def test_a_stopped_process_hands_running_work_to_the_next_one(make: Make) -> None:
    """A drain that runs out of patience is not a failure: the job is queued again and finishes after the restart."""
    settings = make(large="noop:?step_ms=10", drain_s=0.2)
    async with house(settings) as it:
        stream = it.client.generate_stream("too long for the drain", steps=200, cache="off")
        accepted = await anext(stream)
        assert isinstance(accepted, Accepted)
        async with asyncio.timeout(20):
            while (await it.client.get_job(accepted.job_id)).job.state is not JobState.RUNNING:
                await asyncio.sleep(0.02)
        catalog = settings.catalog_url
    handed_back = await _row(catalog, accepted.job_id)
    async with house(settings) as it:
        assert await _finished(it.client, accepted.job_id)
        done = (await it.client.get_job(accepted.job_id)).job

    assert (handed_back.state, handed_back.attempt) == (JobState.QUEUED, 1)
    assert (handed_back.failures, handed_back.crashes) == (0, 0)
    assert (done.attempt, done.failures, done.crashes) == (2, 0, 0)


async def _row(catalog_url: str, job_id: str) -> Job:
    """As it lies on the disk while nothing runs."""
    catalog = await open_catalog(catalog_url)
    try:
        return await catalog.jobs.get(job_id)
    finally:
        await catalog.close()


async def test_a_job_committed_but_never_sent_is_drawn_by_the_next_process(make: Make) -> None:
    settings = make(large="noop:?step_ms=5")
    async with house(settings) as it:
        job = await it.client.generate("before", steps=2)
        await it.backends.catalog.jobs.accept(
            _queued(await it.backends.catalog.jobs.get(job.job.id)), key_lifetime_s=60.0
        )  # committed, and then the process ended before it told the queue
    async with house(settings) as it:
        assert await _finished(it.client, "committed-but-never-sent")


def _queued(job: object) -> object:
    from dataclasses import replace

    return replace(
        job,  # type: ignore[type-var]
        id="committed-but-never-sent",
        state=JobState.QUEUED,
        result=None,
        attempt=0,
        worker="",
    )
