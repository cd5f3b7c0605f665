"""A picture that one family drew starts a run of any other (MoDM §4.3): its own VAE, its own noise, its own latents."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.gpu_worker.codecs import encode_png
from services.gpu_worker.redraw import redraw
from shared.messages import GenerateImage, refine_lane
from shared.models import tiny_families
from shared.types import Job, ModelPlan, Plan, PlanSource, Size
from tests.unit.gpu_worker.worker import STEPS, Bench, running_worker

FAMILIES = ("sd3", "sana", "flux", "sdxl")
"""The first is the large model's."""


@pytest.fixture
async def four(tmp_path: Path) -> AsyncIterator[Bench]:
    """One worker with a model of every family, bit-equal."""
    large, *smalls = (str(tiny_families.save(tmp_path / name, name)) for name in FAMILIES)
    async with running_worker(tmp_path / "data", large, small=",".join(smalls), batch_invariant=4) as running:
        yield running


async def gone_on(bench: Bench, source: Job, model: str, **changes: Any) -> tuple[Job, bytes]:
    """A job that `model` draws from another's picture, and that picture."""
    entry = await bench.cache(source)
    plan = Plan(
        PlanSource.IMAGE, model, start_step=4, entry_id=entry.id, state_key=entry.picture_key,
        state_sha256=entry.picture_sha256, state_codec="png", may_run=(ModelPlan(model, 4),), miss_model="sd3",
    )  # fmt: skip
    job = await bench.accept(plan, **changes)
    await bench.backends.bus.send(refine_lane(), GenerateImage(job.id))
    return await bench.final(job.id), await bench.blobs.get(plan.state_key)


async def test_each_goes_on_from_the_picture_of_another_at_its_size_and_at_another(four: Bench) -> None:
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
