"""A worker switches its model of images beside a video model that it must unload, or that runs a clip."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from services.gpu_worker.families.noop import NoopFamily
from shared.domain.messages import GenerateImage, lane_of
from shared.domain.types import Job, JobState, Modality, Plan, PlanSource
from tests.unit.gpu_worker.models.test_switching import Reports, assign, drawn_with, queued, runs, two_models
from tests.unit.gpu_worker.worker import WorkerBench

VIDEO = "noop:?name=clips&step_ms=20"


def sized(monkeypatch: pytest.MonkeyPatch, **memory_bytes: int) -> None:
    monkeypatch.setattr(NoopFamily, "memory_bytes", property(lambda family: memory_bytes.get(family.card.name, 50)))


async def clip_sent(bench: WorkerBench, steps: int) -> Job:
    plan = Plan(PlanSource.NOISE, "clips")
    job = await bench.accept(plan, modality=Modality.VIDEO, frames=4, steps=steps)
    await bench.backends.bus.send(lane_of("clips"), GenerateImage(job.id, frames=4))
    return job


async def reported(reports: Reports, model: str, cannot: tuple[str, ...]) -> None:
    async with asyncio.timeout(20):
        while (reports[-1].model, reports[-1].cannot) != (model, cannot):
            await asyncio.sleep(0.005)


async def test_an_unloaded_video_model_is_reported_and_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sized(monkeypatch, small=80)
    async with two_models(tmp_path, resident_bytes=100, video=VIDEO, report_s=0.05) as (bench, reports):
        await runs(reports, "large")
        assert (reports[-1].cannot, set(bench.service._models.families)) == ((), {"large", "clips"})
        await assign(bench, "small", "large")
        await reported(reports, "small", ("clips",))
        assert set(bench.service._models.families) == {"small"}
        clip = await clip_sent(bench, 2)
        await assign(bench, "large", "small")
        await reported(reports, "large", ())
        assert drawn_with(await bench.final(clip.id)) == "clips"


async def test_images_go_on_until_the_clips_before_a_switch_have_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sized(monkeypatch)
    async with two_models(tmp_path, resident_bytes=100, video=VIDEO, report_s=0.05) as (bench, reports):
        await runs(reports, "large")
        clip = await clip_sent(bench, 100)
        await bench.until(lambda job: job.state is JobState.RUNNING, clip.id)
        assert reports[-1].rows == 0  # of images
        await assign(bench, "small", "large")
        async with asyncio.timeout(10):
            while bench.service._tasks.clip_lanes.going_on:
                await asyncio.sleep(0.005)
        assert drawn_with(await bench.final((await queued(bench, "large", steps=2)).id)) == "large"
        assert (await bench.jobs.get(clip.id)).state is JobState.RUNNING
        await runs(reports, "small")
        assert drawn_with(await bench.jobs.get(clip.id)) == "clips"
        assert drawn_with(await bench.final((await clip_sent(bench, 2)).id)) == "clips"
