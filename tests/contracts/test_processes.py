"""Processes that share a directory, or die in the middle."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from shared.blobs import open_blobs
from shared.catalog import open_catalog
from shared.domain.errors import ConfigurationError, DataDirectoryLockedError
from shared.domain.types import JobState
from shared.runtime.datadir import lock_data_dir

Process = asyncio.subprocess.Process
Start = Callable[[str, Path], Awaitable[Process]]

HOLD = """
import sys, time
from shared.runtime.datadir import lock_data_dir
lock = lock_data_dir(sys.argv[1])
print("held", flush=True)
time.sleep(60)
"""

WORK = """
import asyncio, sys
from shared.blobs import open_blobs
from shared.catalog import open_catalog
from tests.contracts.nouns import a_job, a_result

async def main():
    catalog = await open_catalog(f"sqlite+aiosqlite:///{sys.argv[1]}/catalog.db")
    blobs = await open_blobs(f"file:{sys.argv[1]}/blobs")
    while True:
        job, _ = await catalog.jobs.accept(a_job(), key_lifetime_s=60.0)
        print("accepted", job.id, flush=True)
        await catalog.jobs.claim(job.id, "w1", 60.0)
        result = a_result(job.id)
        await blobs.put(result.picture_key, job.id.encode() * 3000)
        await catalog.jobs.finish(job.id, 1, result)
        print("finished", job.id, flush=True)

asyncio.run(main())
"""


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    started: list[Process] = []

    async def run(program: str, folder: Path) -> Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, str(folder), stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def read_line(process: Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), 60.0)).decode().strip()


async def test_a_second_process_is_kept_out_until_the_first_dies(start: Start, tmp_path: Path) -> None:
    first = await start(HOLD, tmp_path / "data")
    assert await read_line(first) == "held"
    with pytest.raises(DataDirectoryLockedError, match=f"{tmp_path / 'data'}.*process {first.pid}"):
        lock_data_dir(tmp_path / "data")
    first.send_signal(signal.SIGKILL)
    await first.wait()
    lock_data_dir(tmp_path / "data").release()


def test_one_process_cannot_lock_twice_but_again(tmp_path: Path) -> None:
    lock = lock_data_dir(tmp_path)
    with pytest.raises(DataDirectoryLockedError, match=f"process {os.getpid()}"):
        lock_data_dir(str(tmp_path))
    lock.release()
    lock.release()
    lock_data_dir(tmp_path).release()


def test_a_data_directory_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigurationError, match="data_dir"):
        lock_data_dir(tmp_path / "file")


async def test_a_killed_process_loses_nothing_it_promised(start: Start, tmp_path: Path) -> None:
    accepted: list[str] = []
    finished: list[str] = []
    for lines in (15, 16):  # once after an acceptance, once after an end
        worker = await start(WORK, tmp_path)
        for _ in range(lines):
            word, job_id = (await read_line(worker)).split()
            (accepted if word == "accepted" else finished).append(job_id)
        worker.send_signal(signal.SIGKILL)  # in the middle of whatever it does now
        await worker.wait()
    catalog = await open_catalog(f"sqlite+aiosqlite:///{tmp_path / 'catalog.db'}")
    blobs = await open_blobs(f"file:{tmp_path / 'blobs'}")
    await catalog.jobs.recover()
    for job_id in accepted:
        job = await catalog.jobs.get(job_id)
        assert job.state in (JobState.QUEUED, JobState.SUCCEEDED)
        assert job.state == JobState.SUCCEEDED or job_id not in finished
        if job.result is not None:
            assert await blobs.get(job.result.picture_key) == job_id.encode() * 3000
    await blobs.close()
    await catalog.close()
