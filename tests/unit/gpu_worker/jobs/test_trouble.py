"""What a worker makes of errors and of workers that died before it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from services.gpu_worker.families.noop import NoopFamily
from services.gpu_worker.families.unet import UNetFamily
from services.gpu_worker.jobs import endings as endings_module
from shared.bus.inprocess.lanes import Parcel
from shared.domain.errors import ModelError, StorageFullError, UnavailableError
from shared.domain.messages import GenerateImage, JobFailed, JobSucceeded, encode, lane_of
from shared.domain.types import Job, JobState, Size
from shared.runtime.telemetry import METRICS
from tests.unit.gpu_worker.worker import SLOW, WorkerBench, running_worker


async def test_checkpoints_of_a_worker_killed_after_its_jobs_end_go_with_its_task(slow: WorkerBench) -> None:
    job = await slow.draw(steps=2)
    await slow.idle()
    await slow.blobs.put(f"checkpoints/{job.id}-1-1.safetensors", b"left")
    await slow.send(job)  # one that nobody had in hand says nothing of a killed worker
    await slow.told(JobSucceeded, job.id, count=2)
    await slow.idle()
    assert len(await slow.keys("checkpoints/")) == 1
    await _send_again(slow, job)
    await slow.told(JobSucceeded, job.id, count=3)
    await slow.idle()
    assert await slow.keys("checkpoints/") == []


async def test_blobs_that_cannot_be_deleted_now_are_left_to_the_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: list[Any]
) -> None:
    """The job has ended and its task is settled: nothing is put back."""

    async def away(_: object) -> None:
        raise UnavailableError("the blob store does not answer")

    async with running_worker(tmp_path, SLOW, checkpoint_every_steps=2) as bench:
        job = await bench.accept(steps=10)
        await bench.send(job)
        await bench.until(lambda row: row.checkpoint_step > 0, job.id)
        monkeypatch.setattr(bench.blobs, "delete", away)
        done = await bench.final(job.id)
        await bench.idle()
        assert (done.state, done.attempt) == (JobState.SUCCEEDED, 1)
    told = [line["event"] for line in logs]
    assert "blobs left to the collector" in told
    assert "task put back" not in told


async def _send_again(bench: WorkerBench, job: Job) -> None:
    """The task as the broker brings it after its worker died."""
    lane = lane_of(bench.model)
    parcel = Parcel(lane, *encode(GenerateImage(job.id)), urgent=False, delivered=True)
    bench.backends.bus.lane(lane).put(parcel)  # type: ignore[attr-defined]


async def test_a_worker_that_dies_before_the_burial_leaves_it_to_the_next(
    slow: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endings_module, "DEAD_LETTER_GRACE_S", 0.05)
    job = await slow.accept()
    assert await slow.jobs.claim(job.id, "dead", 60)
    assert await slow.jobs.fail(job.id, 1, "its own fault", final=True)  # killed here
    await slow.send(job)  # a duplicate of the sweeper's: another task stands for the job
    await _send_again(slow, job)
    (fact,) = await slow.told(JobFailed, job.id)
    await slow.idle()
    assert (fact.attempt, fact.error) == (1, "its own fault")
    (letter,) = await slow.backends.bus.dead_letters()
    assert (letter.message, letter.reason) == (GenerateImage(job.id), "its own fault")


async def test_of_all_the_tasks_of_a_failed_job_one_is_buried(
    slow: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker was killed again and again: the broker's task, and one of the sweeper's for each crash."""
    monkeypatch.setattr(endings_module, "DEAD_LETTER_GRACE_S", 0.2)
    job = await slow.accept()
    assert await slow.jobs.claim(job.id, "dead", 60)
    assert await slow.jobs.fail(job.id, 1, "crashed 5 times", final=True)
    for _ in range(3):
        await _send_again(slow, job)
    await slow.idle()
    assert await slow.backends.bus.dead_letters() == []  # who failed it may be about to
    await slow.told(JobFailed, job.id)
    await asyncio.sleep(0.3)
    with monkeypatch.context() as patched:  # the row says it: nobody looks through the letters
        patched.setattr(slow.backends.bus, "dead_letters", None)
        await _send_again(slow, job)
        await asyncio.sleep(0.05)
        await slow.idle()
    (letter,) = await slow.backends.bus.dead_letters()
    assert (letter.message, letter.reason) == (GenerateImage(job.id), "crashed 5 times")
    assert len(slow.heard(JobFailed, job.id)) == 1


async def test_the_tasks_own_error_is_tried_three_times_then_kept_on_the_job(
    bench: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.draw()
    await bench.idle()
    before = set(await bench.keys())

    def not_finite(self: UNetFamily, size: Size, generator: object, frames: int) -> torch.Tensor:
        return torch.full(self.latent_shape(size), torch.nan)

    monkeypatch.setattr(UNetFamily, "initial_noise", not_finite)
    job = await bench.draw()
    await bench.idle()
    assert (job.state, job.attempt, job.failures) == (JobState.FAILED, 3, 3)
    assert "not finite" in job.error
    assert [fact.attempt for fact in await bench.told(JobFailed)] == [3]
    (letter,) = await bench.backends.bus.dead_letters()
    assert (letter.message, "not finite" in letter.reason) == (GenerateImage(job.id, only=True), True)
    assert set(await bench.keys()) == before


@pytest.mark.usefixtures("plain_logs")
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            ModelError("no /srv/weights on gpu-7.internal", outside="its weights are gone"),
            "ModelError: its weights are gone",
        ),
        (OSError("no route to gpu-7.internal"), "internal error: OSError"),
    ],
    ids=["known", "a bug"],
)
async def test_what_names_hosts_is_in_the_dead_letter_and_not_on_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    def fails(self: NoopFamily, latent: object) -> None:
        raise error

    async with running_worker(tmp_path, SLOW, max_attempts=1) as bench:
        monkeypatch.setattr(NoopFamily, "decode", fails)
        job = await bench.draw(steps=2)
        await bench.idle()
        (letter,) = await bench.backends.bus.dead_letters()
        (fact,) = await bench.told(JobFailed)
    assert (job.state, job.error, fact.error) == (JobState.FAILED, told, told)
    assert "gpu-7.internal" in letter.reason


@pytest.mark.usefixtures("plain_logs")
async def test_a_task_nobody_can_claim_yet_is_never_buried(slow: WorkerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = slow.jobs.claim
    refused: list[Any] = []

    async def away(*given: Any) -> Job | None:
        refused.append(given)
        if len(refused) <= 60:  # more than a task may be rejected for its own sake
            raise (UnavailableError if len(refused) % 2 else ZeroDivisionError)("no claims today")
        return await claim(*given)

    monkeypatch.setattr(endings_module, "BUSY_RETRY_S", 0.001)
    monkeypatch.setattr(endings_module, "RETRY_S", 0.001)
    monkeypatch.setattr(slow.jobs, "claim", away)
    job = await slow.draw(steps=2)
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1)
    assert await slow.backends.bus.dead_letters() == []


@pytest.mark.usefixtures("plain_logs")
async def test_a_bug_in_the_worker_costs_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_worker(tmp_path, SLOW, max_rows=1) as bench:
        claim = bench.jobs.claim
        broken: list[Any] = []

        async def breaks_once(*given: Any) -> Job | None:
            if not broken:
                broken.append(given)
                raise ZeroDivisionError("a bug")
            return await claim(*given)

        monkeypatch.setattr(bench.jobs, "claim", breaks_once)
        job = await bench.draw(steps=2)
        assert (job.state, len(broken)) == (JobState.SUCCEEDED, 1)


async def test_saved_steps_are_counted_once_for_a_finished_picture(
    bench: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def saved() -> float:
        return METRICS.steps_saved.labels(bench.model)._value.get()

    entry = await bench.cache(await bench.draw())
    before, put = saved(), bench.blobs.put
    refused: list[str] = []

    async def full_once(key: str, data: bytes, **more: Any) -> str:
        if key.startswith("pictures/") and not refused:
            refused.append(key)
            raise StorageFullError("no room", retry_after_s=0.01)
        return await put(key, data, **more)

    monkeypatch.setattr(bench.blobs, "put", full_once)
    job = await bench.draw(bench.hit(entry, 4))
    await bench.idle()
    assert (job.attempt, saved() - before) == (2, 4)
    late = await bench.draw(bench.hit(entry, 4), deadline_s=0.0001, drop_if_late=True)
    await bench.idle()
    assert (late.state, saved() - before) == (JobState.CANCELLED, 4)


async def test_a_state_that_cannot_be_stored_is_a_hole_not_a_failure(
    bench: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = bench.blobs.put

    async def no_room_for_two(key: str, data: bytes, **more: Any) -> str:
        if key.endswith("-2.safetensors"):
            raise StorageFullError("no room")
        return await put(key, data, **more)

    monkeypatch.setattr(bench.blobs, "put", no_room_for_two)
    job = await bench.draw()
    assert job.result is not None, job.error
    assert [state.step for state in job.result.captured] == [4]
