"""A picture starts a run where diffusers' image-to-image pipelines start theirs (MoDM §4.3, eq. 2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from services.gpu_worker.engine.row_start import make_row
from services.gpu_worker.engine.rows import FromPicture
from tests.unit.gpu_worker.families.conftest import SAVED, LoadTiny, a_picture, a_task, drawn
from tests.unit.gpu_worker.families.reference import latent_from_picture, pipeline_of

STEPS, STEP = 10, 4


def from_picture(**changes: Any) -> Any:
    task = a_task(steps=STEPS, negative_prompt="blurry", **changes)
    return a_task(steps=STEPS, negative_prompt="blurry", start=FromPicture(a_picture(task.size), STEP), **changes)


@pytest.mark.parametrize("name", SAVED)
def test_a_picture_is_encoded_as_diffusers_encodes_it(tiny_family: LoadTiny, name: str) -> None:
    family, picture = tiny_family(name), a_picture(a_task().size)
    vae = family.pipeline.vae
    with torch.inference_mode():
        encoded = vae.encode(family.pipeline.image_processor.preprocess(Image.fromarray(picture)))
        latent = encoded.latent_dist.mode() if hasattr(encoded, "latent_dist") else encoded.latent
        want = (latent - (vae.config.get("shift_factor") or 0)) * vae.config.scaling_factor
        np.testing.assert_allclose(family.encode_picture(picture), want[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", [name for name in SAVED if name != "sana"])
def test_the_run_is_the_image_to_image_pipelines(tiny_family: LoadTiny, name: str) -> None:
    family, task = tiny_family(name), from_picture()
    with torch.inference_mode():
        clean = family.encode_picture(task.start.pixels)
    ours = drawn(family, task)["a"]
    assert ours.steps_run == STEPS - STEP
    theirs = latent_from_picture(family, task, clean, STEP)
    np.testing.assert_allclose(ours.latent, theirs.numpy(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", SAVED)
def test_the_noised_latent_is_the_schedulers(tiny_family: LoadTiny, name: str) -> None:
    """Eq. 2, σ·ε + (1 − σ)·x, at the sampler's own sigma; the scheduler's add_noise for DDIM."""
    family, task = tiny_family(name), from_picture()
    with torch.inference_mode():
        row = make_row(family, task)
        clean = family.encode_picture(task.start.pixels)
    noise = family.initial_noise(task.size, torch.Generator().manual_seed(task.seed))
    scheduler = pipeline_of(family).scheduler
    if name == "sdxl":
        scheduler.set_timesteps(STEPS)
        want = scheduler.add_noise(clean[None], noise[None], scheduler.timesteps[STEP : STEP + 1])
    else:
        schedule = family.sampler.schedule(STEPS, tuple(noise.shape[-2:]))
        sigma = float(schedule.level[STEP, 1])
        assert 0.3 < sigma < 0.95
        assert float(schedule.timesteps[STEP]) == pytest.approx(1000 * sigma, rel=1e-5)
        want = (sigma * noise + (1 - sigma) * clean)[None]
    np.testing.assert_allclose(row.latent, want[0], atol=1e-5)
    assert row.done == STEP
