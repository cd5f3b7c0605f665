"""The order and the names of a worker's writes, and how many tasks it holds (docs/architecture.md, Write order)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shared.bus.inprocess import InProcessBus
from shared.domain.errors import StorageFullError, UnavailableError
from shared.domain.messages import GenerateImage, lane_of
from shared.domain.types import JobState
from tests.unit.gpu_worker.worker import SLOW, WorkerBench, running_worker


@pytest.mark.parametrize("stored", [True, False])
async def test_a_row_names_no_checkpoint_that_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, stored: bool
) -> None:
    async with running_worker(tmp_path, SLOW, checkpoint_every_steps=2) as bench:
        put, checkpoint = bench.blobs.put, bench.jobs.checkpoint
        asked: list[str] = []
        there: list[bool] = []

        async def slowly_if_at_all(key: str, data: bytes, **more: Any) -> str:
            if key.startswith("checkpoints/"):
                asked.append(key)
                await asyncio.sleep(0.01)
                if not stored:
                    raise UnavailableError("the store is away")
            return await put(key, data, **more)

        async def named(job_id: str, attempt: int, key: str, step: int) -> bool:
            there.append(key in await bench.keys("checkpoints/"))
            return await checkpoint(job_id, attempt, key, step)

        monkeypatch.setattr(bench.blobs, "put", slowly_if_at_all)
        monkeypatch.setattr(bench.jobs, "checkpoint", named)
        job = await bench.draw()
        await bench.idle()
        assert job.state is JobState.SUCCEEDED
        assert len(asked) == 4  # of 10 steps
        assert there == [True] * 4 * stored


async def test_two_attempts_at_a_job_write_nothing_under_the_same_name(
    bench: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the one that loses deletes, or overwrites, what the winner's row names."""
    put = bench.blobs.put
    written: list[str] = []

    async def full_once(key: str, data: bytes, **more: Any) -> str:
        written.append(key)
        if sum(one.startswith("pictures/") for one in written) == 1 and key.startswith("pictures/"):
            raise StorageFullError("no room", retry_after_s=0.01)
        return await put(key, data, **more)

    monkeypatch.setattr(bench.blobs, "put", full_once)
    job = await bench.draw()
    await bench.idle()
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 2)
    assert job.result is not None
    assert len(written) == len(set(written)) == 2 * 3  # a picture and the states after 2 and 4 steps, twice
    kept = [job.result.picture_key, *(state.key for state in job.result.captured)]
    assert sorted(await bench.keys()) == sorted(kept)


async def test_what_a_worker_has_no_row_for_is_left_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receive = InProcessBus.receive
    asked: list[int] = []

    async def noted(self: InProcessBus, lanes: Sequence[str], *, prefetch: int, ahead: bool = True) -> Any:
        asked.append(prefetch)
        return await receive(self, lanes, prefetch=prefetch, ahead=ahead)

    with monkeypatch.context() as patched:
        patched.setattr(InProcessBus, "receive", noted)
        async with running_worker(tmp_path, SLOW, max_rows=2) as bench:
            jobs = [await bench.accept(steps=40) for _ in range(4)]
            for job in jobs:
                await bench.send(job)
            async with asyncio.timeout(10):
                while len(bench.service._tasks.lanes.in_hand) < 2:
                    await asyncio.sleep(0.005)
            assert asked == [2]  # a broker sends that many ahead, whether they are taken or not
            other = await bench.backends.bus.receive([lane_of(bench.model)], prefetch=4)
            async with asyncio.timeout(1):
                others = [(await other.get()).message for _ in range(2)]
    assert others == [GenerateImage(job.id) for job in jobs[2:]]
