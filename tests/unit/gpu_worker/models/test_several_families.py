"""A picture that one family drew starts a run of any other (MoDM §4.3): its own VAE, its own noise, its own latents."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.gpu_worker.jobs.codecs import encode_png
from shared.domain.messages import GenerateImage, refine_lane
from shared.domain.types import Job, ModelPlan, Plan, PlanSource, Size, Source
from shared.models import find_card
from tests import tiny, tiny_families
from tests.redraw import redraw
from tests.unit.gpu_worker.worker import STEPS, WorkerBench, running_worker

FAMILIES = ("sd3", "sana", "flux", "sdxl")
"""The first is the large model's."""


@pytest.fixture
async def four(tmp_path: Path) -> AsyncIterator[WorkerBench]:
    """One worker with a model of every family, bit-equal."""
    large, *smalls = (str(small_sized(tiny_families.save(tmp_path / name, name))) for name in FAMILIES)
    async with running_worker(
        tmp_path / "data", large, small=",".join(smalls), batch_invariant=2, max_rows=2
    ) as running:
        yield running


def small_sized(folder: Path) -> Path:
    """Gives the model a card with the size of these tests' images: a worker measures its steps at the default size,
    and flux's is sixteen times as large."""
    card = find_card(str(folder))
    said = {"name": card.name, "role": card.role, "default_size": {"width": 64, "height": 64}}
    (folder / "card.json").write_text(json.dumps(said))
    return folder


async def gone_on(bench: WorkerBench, source: Job, model: str, **changes: Any) -> tuple[Job, bytes]:
    """A job that `model` draws from another's picture, and that picture."""
    entry = await bench.cache(source)
    plan = Plan(
        PlanSource.IMAGE, model, start_step=4,
        sources=(Source(entry.id, entry.picture_key, entry.picture_sha256, "png"),), may_run=(ModelPlan(model, 4),),
        miss_model="sd3",
    )  # fmt: skip
    job = await bench.accept(plan, **changes)
    await bench.backends.bus.send(refine_lane(), GenerateImage(job.id))
    return await bench.final(job.id), await bench.blobs.get(plan.state_key)


async def test_each_goes_on_from_the_picture_of_another_at_its_size_and_at_another(four: WorkerBench) -> None:
    source = await four.draw(Plan(PlanSource.NOISE, "sd3"))
    for name, size in zip(
        (*FAMILIES[1:], "sd3"), (Size(64, 64), Size(96, 64), Size(64, 32), Size(64, 64)), strict=True
    ):
        job, png = await gone_on(four, source, name, size=size, prompt="a blue fox")
        assert job.result is not None, job.error
        assert (job.plan.source, job.result.model) == (PlanSource.IMAGE, name), job.plan.degraded
        assert job.result.steps_run == STEPS - 4
        picture = await four.picture(job)
        assert picture.shape == (size.height, size.width, 3)
        family = four.service._place.families[name]
        assert encode_png(redraw(family, job.request, job.plan, png).pixels) == await four.blobs.get(
            job.result.picture_key
        )
        assert not np.array_equal(picture, redraw(family, job.request, Plan(PlanSource.NOISE, name)).pixels)
        source = job  # the next goes on from this one's


async def test_a_model_with_a_t_of_its_own_goes_on_at_the_same_noise_level_of_its_schedule(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """T = 10 behind a large model of T = 50, with DDIM and with flow matching: as if ten steps had been asked for."""
    large = str(tiny_folder / "large")
    smalls = [
        str(tiny.build(tmp_path, seed=1, name="turbo-ddim", clip=False) / "turbo-ddim"),
        str(tiny_families.save(tmp_path / "turbo-flow", "sd3", seed=1)),
    ]
    async with running_worker(tmp_path / "data", large, small=",".join(smalls), batch_invariant=2, max_rows=2) as bench:
        entry = await bench.cache(source := await bench.draw())
        png = await bench.blobs.get(entry.picture_key)
        for name in ("turbo-ddim", "turbo-flow"):
            family = bench.service._place.families[name]
            start = family.card.step_near(15, 50, 10)
            assert start == 3
            able = (ModelPlan(name, start, 1.0, 10), ModelPlan("large", 15))
            plan = Plan(
                PlanSource.IMAGE, name, start_step=start,
                sources=(Source(entry.id, entry.picture_key, entry.picture_sha256, "png"),), may_run=able,
                miss_model="large",
            )  # fmt: skip
            job = await bench.accept(plan, steps=50, prompt="a blue fox")
            await bench.backends.bus.send(refine_lane(), GenerateImage(job.id))
            job = await bench.final(job.id)
            assert job.result is not None, job.error
            assert (job.result.model, job.result.steps_run, job.plan.start_step) == (name, 7, 3)
            assert job.result.compat is not None
            assert job.result.compat.unsteered == family.card.compat(Size(64, 64), 10)

            alone = replace(plan, may_run=(ModelPlan(name, start, 1.0),))
            again = redraw(family, replace(job.request, steps=10), alone, png)
            assert encode_png(again.pixels) == await bench.blobs.get(job.result.picture_key)
            fifty = redraw(family, job.request, replace(alone, start_step=15), png)
            assert not np.array_equal(fifty.pixels, again.pixels)
        assert source.result is not None
        assert source.result.steps_run == STEPS
