"""A clip's job in a worker: resumed bit-identical after a kill, previewed, cancelled, and taken beside images."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.gpu_worker.engine.events import Checkpointed, Event
from services.gpu_worker.jobs.codecs import encode_checkpoint
from services.gpu_worker.service import GpuWorkerService
from shared.domain.messages import GenerateImage, JobCancelled, Progress, lane_of
from shared.domain.types import Job, JobState, Lead, Modality, Plan, PlanSource, Size
from tests import tiny_families
from tests.unit.gpu_worker.worker import WorkerBench, running_worker

ASKED: dict[str, Any] = {"modality": Modality.VIDEO, "frames": 6, "size": Size(16, 16), "steps": 6}
NOISE = Plan(source=PlanSource.NOISE, model="clips", capture_steps=(2, 4))


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_families.save(tmp_path_factory.mktemp("models") / "clips", "animatediff", channels=(16,))


async def sent(bench: WorkerBench, plan: Plan = NOISE, previews: bool = False, **changes: Any) -> Job:
    job = await bench.accept(plan, **{**ASKED, **changes})
    await bench.backends.bus.send(lane_of("clips"), GenerateImage(job.id, previews=previews, frames=job.request.frames))
    return job


def checkpoints_of(bench: WorkerBench) -> list[Checkpointed]:
    """Return the list that each later checkpoint of this worker is added to."""
    saved: list[Checkpointed] = []
    hear = bench.service._thread._on_events

    def heard(events: list[Event]) -> None:
        saved.extend(event for event in events if isinstance(event, Checkpointed))
        hear(events)

    bench.service._thread._on_events = heard
    return saved


async def resumed_from(bench: WorkerBench, at: Checkpointed, plan: Plan, ran: Plan, **changes: Any) -> Job:
    """Return the job of a killed worker once this one has finished it: it left a claim, and a checkpoint."""
    lost = await bench.accept(plan, **{**ASKED, **changes})
    claimed = await bench.jobs.claim(lost.id, "killed", 0.0)
    key = f"checkpoints/{lost.id}-1-3.safetensors"
    await bench.blobs.put(key, encode_checkpoint(at.latent, at.step, at.generator_state, ran, at.noises))
    assert claimed is not None
    assert await bench.jobs.checkpoint(lost.id, claimed.attempt, key, at.step)
    assert await bench.jobs.release(lost.id, claimed.attempt)
    await bench.backends.bus.send(lane_of("clips"), GenerateImage(lost.id))
    return await bench.final(lost.id)


async def test_a_clip_resumes_bit_identical_and_starts_from_its_states(clips: Path, tmp_path: Path) -> None:
    async with running_worker(
        tmp_path, "noop:?name=large", video=str(clips), batch_invariant=2, state_codec="fp32", checkpoint_every_steps=3
    ) as bench:
        saved = checkpoints_of(bench)
        whole = await bench.final((await sent(bench)).id)
        assert whole.result is not None, whole.error
        assert whole.result.compat is not None
        assert whole.result.compat.frames == 6
        picture = await bench.picture(whole)
        assert picture.shape == (6, 16, 16, 3)
        (at,) = saved
        assert at.latent.shape == (4, 6, 8, 8)

        resumed = await resumed_from(bench, at, NOISE, whole.plan)
        assert resumed.result is not None, resumed.error
        assert resumed.result.steps_run == 3
        assert np.array_equal(await bench.picture(resumed), picture)

        entry = await bench.cache(whole)
        hit = await bench.final((await sent(bench, bench.hit(entry, 4, model="clips"))).id)
        assert hit.result is not None, hit.error
        assert (hit.result.steps_run, hit.plan.degraded) == (2, ())
        assert np.array_equal(await bench.picture(hit), picture)


async def test_a_clip_that_goes_on_resumes_bit_identical_while_its_lead_is_there(clips: Path, tmp_path: Path) -> None:
    async with running_worker(
        tmp_path, "noop:?name=large", video=str(clips), batch_invariant=2, checkpoint_every_steps=3, max_attempts=1
    ) as bench:
        first = await bench.final((await sent(bench)).id)
        assert first.result is not None, first.error
        before = await bench.picture(first)
        saved = checkpoints_of(bench)
        lead = Lead(first.id, first.result.picture_key, first.result.picture_sha256, frames=6, held=2)
        plan = Plan(source=PlanSource.NOISE, model="clips", lead=lead)
        named: dict[str, Any] = {"continue_job": first.id, "seed": 9}
        whole = await bench.final((await sent(bench, plan, **named)).id)
        picture = await bench.picture(whole)
        assert picture.shape == (whole.frames, 16, 16, 3) == (10, 16, 16, 3)
        assert np.array_equal(picture[:6], before)
        (at,) = saved
        assert at.latent.shape == (4, 6, 8, 8)
        resumed = await resumed_from(bench, at, plan, whole.plan, **named)
        assert resumed.result is not None, resumed.error
        assert resumed.result.steps_run == 3
        assert np.array_equal(await bench.picture(resumed), picture)

        await bench.blobs.delete([lead.key])
        lost = await resumed_from(bench, at, plan, whole.plan, **named)
        assert (lost.state, f"continue_job '{first.id}': its result cannot be used" in lost.error) == ("failed", True)


async def test_clips_wait_apart_from_images_and_are_previewed_and_cancelled(tmp_path: Path) -> None:
    slow = "noop:?step_ms=20&name=clips&frames=16"
    async with running_worker(tmp_path, "noop:?name=large", video=slow, progress_per_s=60) as bench:
        running = await sent(bench, previews=True, frames=16, steps=500)
        waiting = [await sent(bench, frames=16) for _ in range(9)]  # more than the worker has rows
        await bench.until(lambda job: job.state is JobState.RUNNING, running.id)
        image = await bench.draw(Plan(source=PlanSource.NOISE, model="large"))
        assert image.state is JobState.SUCCEEDED
        assert {(await bench.jobs.get(job.id)).state for job in waiting} == {JobState.QUEUED}
        async with asyncio.timeout(10):
            while not any(fact.preview for fact in bench.heard(Progress, running.id)):
                await asyncio.sleep(0.01)
        for job in (running, *waiting[1:]):
            await bench.jobs.cancel(job.id)
        await bench.backends.bus.publish(JobCancelled(running.id))
        assert (await bench.final(waiting[0].id)).state is JobState.SUCCEEDED


async def test_a_tenant_with_many_clips_lets_another_go_first(tmp_path: Path) -> None:
    """One clip runs at a time, and the exchanged tasks are of clips of other lengths."""
    async with running_worker(tmp_path, "noop:?name=large", video="noop:?name=clips&step_ms=5", max_rows=16) as bench:
        asked: dict[str, Any] = {"steps": 10, "size": Size(64, 64), "frames": 8}
        running = await sent(bench, tenant="flood", **asked | {"frames": 16, "steps": 200})
        await bench.until(lambda job: job.state is JobState.RUNNING, running.id)
        flood = [await sent(bench, tenant="flood", **asked) for _ in range(4)]
        other = await sent(bench, tenant="other", **asked | {"frames": 16})
        done = [await bench.final(job.id) for job in (running, *flood, other)]
        assert [job.state for job in done] == [JobState.SUCCEEDED] * 6
        order = [job.id for job in sorted(done, key=lambda job: job.exposed_from)]
        assert order[:2] == [running.id, other.id]
        assert [job.attempt for job in done] == [1] * 6


async def test_clips_reach_only_workers_with_the_video_model(tmp_path: Path) -> None:
    async with running_worker(tmp_path, "noop:?name=large&step_ms=5", video="noop:?name=clips&step_ms=5") as bench:
        without = GpuWorkerService(2)
        settings = bench.settings.model_copy(update={"video": ""})
        await without.start(replace(bench.context, settings=settings))
        try:
            clips = [await sent(bench) for _ in range(4)]
            images = [await bench.accept(Plan(source=PlanSource.NOISE, model="large")) for _ in range(12)]
            for image in images:
                await bench.send(image)
            done = [await bench.final(job.id) for job in (*clips, *images)]
        finally:
            await without.drain()
            await without.stop()
        assert {job.state for job in done} == {JobState.SUCCEEDED}
        assert {job.worker.partition("-")[2] for job in done[:4]} == {bench.service.worker}
        assert {job.worker.partition("-")[2] for job in done[4:]} == {bench.service.worker, without.worker}
