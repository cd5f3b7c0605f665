"""Pictures that one model made and another goes on from: whose k, at which size, and what happens without them."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from services.gpu_worker.jobs.codecs import encode_png, fitted
from services.gpu_worker.jobs.plan_resolution import prepare
from services.gpu_worker.service import GpuWorkerService
from shared.domain.messages import GenerateImage, StateLost, StateUsed, lane_of, refine_lane
from shared.domain.types import Job, JobState, ModelPlan, Plan, PlanSource, Size, Source
from tests import tiny
from tests.redraw import redraw
from tests.unit.gpu_worker.worker import STEPS, WorkerBench, running_worker


@pytest.fixture(scope="module")
def pair_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    tiny.build(folder, clip=False)
    return tiny.build(folder, seed=1, channels=(8, 16), name="tiny-small", clip=False)


@pytest.fixture
async def pair(pair_folder: Path, tmp_path: Path) -> AsyncIterator[WorkerBench]:
    """Large and small in one worker, bit-equal."""
    large, small = (str(pair_folder / name) for name in ("large", "tiny-small"))
    async with running_worker(tmp_path / "data", large, small=small, batch_invariant=2, max_rows=2) as running:
        yield running


async def image_hit(bench: WorkerBench, source: Job, **changes: Any) -> Plan:
    entry = await bench.cache(source)
    plan = Plan(
        source=PlanSource.IMAGE,
        model="tiny-small",
        start_step=6,
        sources=(Source(entry.id, entry.picture_key, entry.picture_sha256, "png"),),
        may_run=(ModelPlan("tiny-small", 6, 1.0), ModelPlan("large", 3)),
        miss_model="large",
    )
    return replace(plan, **changes)


async def refined(bench: WorkerBench, plan: Plan, **changes: Any) -> Job:
    job = await bench.accept(plan, **changes)
    await bench.backends.bus.send(refine_lane(), GenerateImage(job.id))
    return await bench.final(job.id)


async def test_the_small_model_goes_on_from_the_large_ones_picture_and_again_bit_equal(pair: WorkerBench) -> None:
    first = await pair.draw()
    plan = await image_hit(pair, first)
    job = await refined(pair, plan, prompt="a blue fox")
    assert job.result is not None, job.error
    assert (job.result.model, job.result.steps_run, job.plan.start_step) == ("tiny-small", STEPS - 6, 6)
    small = pair.service._place.families["tiny-small"]
    assert job.result.compat is not None
    assert job.result.compat.unsteered == small.card.compat(Size(64, 64), STEPS)
    assert await pair.told(StateUsed) == [StateUsed(plan.entry_id, 0)]

    again = redraw(small, job.request, job.plan, await pair.blobs.get(plan.state_key))
    assert encode_png(again.pixels) == await pair.blobs.get(job.result.picture_key)
    assert not np.array_equal(await pair.picture(first), await pair.picture(job))
    # the guidance of the plan, not the large model's
    other = redraw(small, job.request, replace(job.plan, may_run=()), await pair.blobs.get(plan.state_key))
    assert not np.array_equal(other.pixels, again.pixels)


async def test_where_only_the_large_model_may_it_starts_at_its_own_k(pair: WorkerBench) -> None:
    plan = await image_hit(pair, await pair.draw(), may_run=(ModelPlan("gone", 8), ModelPlan("large", 3)))
    job = await refined(pair, plan)
    assert job.result is not None, job.error
    assert (job.plan.model, job.plan.start_step, job.result.steps_run) == ("large", 3, STEPS - 3)


async def test_a_picture_of_another_size_is_made_to_fit(pair: WorkerBench) -> None:
    plan = await image_hit(pair, await pair.draw())
    job = await refined(pair, plan, size=Size(96, 64))
    assert job.result is not None, job.error
    assert (job.plan.source, job.result.steps_run) == (PlanSource.IMAGE, STEPS - 6)
    assert (await pair.picture(job)).shape == (64, 96, 3)
    small = pair.service._place.families["tiny-small"]
    again = redraw(small, job.request, job.plan, await pair.blobs.get(plan.state_key))
    assert encode_png(again.pixels) == await pair.blobs.get(job.result.picture_key)


@pytest.mark.parametrize("trouble", ["vanished", "corrupt", "no picture"])
async def test_without_its_picture_it_is_a_miss_and_the_large_models(pair: WorkerBench, trouble: str) -> None:
    plan = await image_hit(pair, await pair.draw())
    match trouble:
        case "vanished":
            await pair.blobs.delete([plan.state_key])
        case "corrupt":
            await pair.blobs.put(plan.state_key, b"garbage")
        case "no picture":
            garbage = await pair.blobs.put(plan.state_key, b"garbage")
            plan = replace(plan, sources=(replace(plan.first_source, sha256=garbage),))
    job = await refined(pair, plan)
    assert job.result is not None, job.error
    assert (job.plan.source, job.plan.start_step, job.result.model) == (PlanSource.NOISE, 0, "large")
    assert job.result.steps_run == STEPS
    assert job.plan.degraded[0].startswith("blobs: ")
    assert job.plan.reason.startswith("Generated from noise after all: ")
    assert await pair.told(StateLost) == [StateLost(plan.entry_id, 0, plan.state_key)]


async def test_a_miss_of_a_model_that_is_not_here_moves_to_its_lane(pair: WorkerBench) -> None:
    plan = await image_hit(pair, await pair.draw(), miss_model="elsewhere")
    await pair.blobs.delete([plan.state_key])
    job = await pair.accept(plan)
    await pair.backends.bus.send(refine_lane(), GenerateImage(job.id))
    receiver = await pair.backends.bus.receive([lane_of("elsewhere")], prefetch=1)
    assert (await receiver.get()).message == GenerateImage(job.id, only=True)  # claimed before: its own task alone fits
    await receiver.close()
    moved = await pair.jobs.get(job.id)
    assert (moved.state.value, moved.lane, moved.plan.source) == ("queued", "generate.elsewhere", PlanSource.NOISE)
    assert (moved.failures, moved.crashes) == (0, 0)
    assert moved.plan.degraded[0].endswith("generated from noise")


@pytest.mark.parametrize(("assigned", "drawn"), [(None, False), ({"gone", "large"}, False), ({"large"}, True)])
async def test_a_picture_for_models_that_are_not_here_moves_to_one_that_runs_else_it_is_a_miss(
    pair: WorkerBench, assigned: set[str] | None, drawn: bool
) -> None:
    plan = await image_hit(pair, await pair.draw(), may_run=(ModelPlan("gone", 6),), model="gone")
    families = {"large": pair.service._place.families["large"]}
    job = await pair.accept(plan)
    prepared = await prepare(job, families, pair.blobs, pair.backends.catalog.entries, assigned=assigned)
    if drawn:
        assert prepared.family is families["large"]
        assert (prepared.plan.source, prepared.plan.model) == (PlanSource.NOISE, "large")
        assert prepared.plan.degraded == ("workers: no worker runs gone; generated from noise",)
    else:
        assert prepared.family is None
        assert (prepared.plan.source, prepared.plan.model, prepared.plan.start_step) == (PlanSource.IMAGE, "gone", 6)


async def test_a_picture_is_no_miss_where_that_would_wait_for_the_same_model(pair: WorkerBench) -> None:
    """The only worker is on a turn with the small model, and the picture is the large one's to go on from."""
    plan = await image_hit(pair, await pair.draw(), may_run=(ModelPlan("gone", 6),), model="gone", miss_model="gone")
    families = {"large": pair.service._place.families["large"]}
    job = await pair.accept(plan)
    prepared = await prepare(job, families, pair.blobs, pair.backends.catalog.entries, assigned={"large"})
    assert prepared.family is None
    assert (prepared.plan.source, prepared.plan.model, prepared.plan.start_step) == (PlanSource.IMAGE, "gone", 6)


async def test_a_latent_hit_of_a_model_that_is_not_here_is_drawn_by_its_image_plan(pair: WorkerBench) -> None:
    image = await image_hit(pair, await pair.draw(), may_run=(ModelPlan("tiny-small", 6, 1.0),))
    plan = Plan(
        PlanSource.LATENT, "elsewhere", 4, sources=(Source("e", "states/none"),), weights_hash="x", fallback=image
    )
    job = await refined(pair, plan)
    assert job.result is not None, job.error
    assert (job.plan.source, job.plan.model, job.result.steps_run) == (PlanSource.IMAGE, "tiny-small", STEPS - 6)


async def test_what_waits_in_refine_is_drawn_when_the_only_small_worker_goes(pair_folder: Path, tmp_path: Path) -> None:
    """Whoever comes or is left draws what it had not finished, by the same plan; nothing counts against the jobs."""
    large, small = (str(pair_folder / name) for name in ("large", "tiny-small"))
    async with running_worker(tmp_path / "data", large, small=small, max_rows=2) as bench:
        plan = await image_hit(bench, await bench.draw())
        jobs = [await bench.accept(plan, seed=seed, steps=40) for seed in range(6)]
        for job in jobs:
            await bench.backends.bus.send(refine_lane(), GenerateImage(job.id))
        await bench.until(lambda job: job.state is JobState.RUNNING, jobs[0].id)
        await bench.service.drain(0.0)
        left = [await bench.jobs.get(job.id) for job in jobs]
        assert {job.state for job in left} <= {JobState.QUEUED, JobState.SUCCEEDED}
        assert sum(job.state is JobState.QUEUED for job in left) >= 4

        other = GpuWorkerService()
        await other.start(bench.context)
        try:
            ended = [await bench.final(job.id) for job in jobs]
        finally:
            await other.drain(0.1)
            await other.stop()
        assert all(job.state is JobState.SUCCEEDED for job in ended), [job.error for job in ended]
        assert {(job.plan.source, job.plan.start_step) for job in ended} == {(PlanSource.IMAGE, 6)}
        assert {(job.failures, job.crashes) for job in ended} == {(0, 0)}


def test_a_picture_is_cut_to_its_new_proportions_and_keeps_its_shapes() -> None:
    wide = np.zeros((64, 96, 3), np.uint8)
    wide[:, 16:80] = 200  # what the middle 64 columns show
    assert np.array_equal(fitted(wide, Size(64, 64)), wide[:, 16:80])
    assert fitted(wide, Size(96, 64)) is wide
    assert fitted(wide, Size(32, 48)).shape == (48, 32, 3)
    big = fitted(wide, Size(128, 128))
    assert big.shape == (128, 128, 3)
    assert big[:, 8:120].min() >= 199
    data = io.BytesIO()
    Image.fromarray(big).save(data, "PNG")  # contiguous, and a picture again
