"""Plans that hold patches of their source's image, through a worker; without that image, all patches are computed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from services.gpu_worker.engine import held
from services.gpu_worker.engine.rows import generator_of
from services.gpu_worker.jobs.codecs import decode_checkpoint, encode_checkpoint
from shared.domain.messages import StateLost
from shared.domain.types import Entry, Plan, PlanSource
from shared.runtime.telemetry import METRICS
from tests.unit.gpu_worker.worker import WorkerBench, running_worker

T, K, UNTIL = 20, 4, 18


@pytest.fixture
async def cutting(tiny_folder: Path, tmp_path: Path) -> AsyncIterator[WorkerBench]:
    """A worker on patches with regions."""
    changes = {"layout": "patches", "patch_px": 16, "regions": "on", "state_codec": "fp32", "lease_s": 1.0}
    async with running_worker(tmp_path / "data", str(tiny_folder / "large"), **changes) as running:
        yield running


async def source(bench: WorkerBench) -> tuple[Entry, Plan]:
    """A finished image of T steps as an entry, and a plan that holds its patches."""
    first = await bench.accept()
    job = await bench.draw(replace(first.plan, capture_steps=(K,)), steps=T)
    entry = await bench.cache(job)
    plan = bench.hit(entry, K)
    named = replace(plan.first_source, picture_key=entry.picture_key, picture_sha256=entry.picture_sha256)
    return entry, replace(plan, sources=(named,), region_until=UNTIL)


async def test_a_plan_with_a_region_reports_what_it_skipped(
    cutting: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "CHANGED", np.inf)
    _, plan = await source(cutting)
    before = METRICS.steps_skipped.labels(cutting.model)._value.get()
    job = await cutting.draw(plan, steps=T, prompt="two boats")
    assert job.result is not None, job.error
    assert job.plan == plan
    assert job.result.steps_run == T - K
    assert job.result.skipped == pytest.approx(7 / (T - K), abs=1e-4)  # every second of 14 steps, the first computes
    counted = METRICS.steps_skipped.labels(cutting.model)._value.get() - before
    assert counted == pytest.approx(7, abs=0.01)


@pytest.mark.parametrize("lost", ["corrupt", "erased"])
async def test_without_the_image_all_patches_are_computed(cutting: WorkerBench, lost: str) -> None:
    entry, plan = await source(cutting)
    plain = await cutting.draw(cutting.hit(entry, K), steps=T, prompt="two boats")
    if lost == "corrupt":
        await cutting.blobs.put(entry.picture_key, b"no image")
    else:
        plan = replace(plan, sources=(replace(plan.first_source, picture_key="", picture_sha256=""),))
    job = await cutting.draw(plan, steps=T, prompt="two boats")
    assert job.result is not None, job.error
    assert (job.result.steps_run, job.result.skipped, job.plan.region_until) == (T - K, 0.0, 0)
    assert job.plan.degraded[0].startswith("regions: ")
    assert job.plan.degraded[0].endswith("; all patches are computed")
    assert np.array_equal(await cutting.picture(job), await cutting.picture(plain))
    lost_ones = await cutting.told(StateLost) if lost == "corrupt" else cutting.heard(StateLost)
    assert [one.key for one in lost_ones] == ([entry.picture_key] if lost == "corrupt" else [])


async def test_a_worker_without_patches_computes_whole_images(bench: WorkerBench) -> None:
    _, plan = await source(bench)
    job = await bench.draw(plan, steps=T)
    assert job.result is not None, job.error
    assert (job.plan.region_until, job.result.skipped) == (0, 0.0)
    assert job.plan.degraded == ("regions: this worker runs whole images; all patches are computed",)


async def test_a_resumed_run_holds_the_region_of_the_lost_one(cutting: WorkerBench) -> None:
    _, plan = await source(cutting)
    anew = np.zeros((16, 16), np.bool_)
    anew[:8] = True
    latent, state = np.zeros((4, 16, 16), np.float32), generator_of(0).get_state().numpy().tobytes()
    for mask, skipped in ((anew, True), (None, False)):
        job = await cutting.accept(plan, steps=T, prompt="two boats")
        assert await cutting.jobs.claim(job.id, "dead", 0.01)
        await cutting.blobs.put(f"checkpoints/{job.id}", encode_checkpoint(latent, 8, state, plan, anew=mask))
        assert await cutting.jobs.checkpoint(job.id, 1, f"checkpoints/{job.id}", 8)
        await asyncio.sleep(0.05)  # the dead worker's lease ends
        await cutting.send(job)
        resumed = await cutting.final(job.id)
        assert resumed.result is not None, resumed.error
        assert resumed.result.steps_run == T - 8
        assert bool(resumed.result.skipped) is skipped


def test_a_checkpoint_keeps_the_cells_that_change() -> None:
    anew = np.eye(4, dtype=np.bool_)
    given = np.ones((1, 4, 4), np.float32), 3, b"generator", Plan(PlanSource.NOISE, "large")
    found = decode_checkpoint(encode_checkpoint(*given, anew=anew))[0].anew
    assert found is not None
    assert found.dtype == np.bool_
    assert np.array_equal(found, anew)
    assert decode_checkpoint(encode_checkpoint(*given))[0].anew is None
