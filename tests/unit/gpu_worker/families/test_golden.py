"""Every family's whole run is diffusers' own pipeline's, alone, resumed, and in company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import LatentCaptured
from services.gpu_worker.engine.rows import FromPicture, FromState
from shared.domain.types import Size
from tests.unit.gpu_worker.families.conftest import SAVED, STEPS, LoadTiny, a_picture, a_task, drawn, warnings_of
from tests.unit.gpu_worker.families.reference import latent_of, pipeline_of, said

WAYS: dict[str, dict[str, Any]] = {
    "guided": {"guidance": 4.5, "negative_prompt": "blurry"},
    "guided away from nothing": {"guidance": 3.0},
    "unguided": {"guidance": 1.0},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SAVED)
def test_a_whole_run_equals_the_pipeline(tiny_family: LoadTiny, name: str, way: str) -> None:
    family, task = tiny_family(name), a_task(**WAYS[way])
    ours = drawn(family, task)["a"]
    np.testing.assert_allclose(ours.latent, latent_of(family, task).numpy(), atol=1e-4, rtol=0)
    assert ours.steps_run == STEPS


@pytest.mark.parametrize("steps", [3, 16])
@pytest.mark.parametrize("name", ["sdxl", "sana"])
def test_a_whole_run_with_dpm_solver_equals_the_pipeline(tiny_family: LoadTiny, name: str, steps: int) -> None:
    family, task = tiny_family(name), a_task(sampler="dpm++2m", steps=steps)
    np.testing.assert_allclose(drawn(family, task)["a"].latent, latent_of(family, task).numpy(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", SAVED)
def test_another_size_and_the_decoded_picture_are_the_pipelines_too(tiny_family: LoadTiny, name: str) -> None:
    family, task = tiny_family(name), a_task(size=Size(96, 64), steps=3)
    ours = drawn(family, task)["a"]
    picture = pipeline_of(family)(**said(family, task), width=96, height=64, output_type="pil").images[0]
    assert ours.pixels.shape == (64, 96, 3)
    assert np.abs(ours.pixels.astype(int) - np.asarray(picture).astype(int)).max() <= 1
    assert ours.pixels.std() > 0


@pytest.mark.parametrize("name", SAVED)
def test_a_run_resumed_at_k_equals_the_uninterrupted_one(tiny_family: LoadTiny, name: str) -> None:
    family = tiny_family(name)
    engine, events = Engine({"m": family}), []
    engine.submit(a_task(capture_steps=(1, 3, 4)))
    while not engine.idle:
        events += engine.step()
    whole = drawn(family, a_task())["a"]
    states = [event for event in events if isinstance(event, LatentCaptured)]
    assert [state.step for state in states] == [1, 3, 4]
    for state in states:
        resumed = drawn(family, a_task(start=FromState(state.latent, state.step)))["a"]
        assert resumed.steps_run == STEPS - state.step
        np.testing.assert_allclose(resumed.latent, whole.latent, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", SAVED)
def test_rows_at_their_own_timesteps_draw_in_company_what_they_draw_alone(tiny_family: LoadTiny, name: str) -> None:
    family = tiny_family(name)
    size = Size(64, 32)
    state = torch.randn(family.latent_shape(size), generator=torch.Generator().manual_seed(1)).numpy()
    crowd = [
        a_task("noise", negative_prompt="blurry"),
        a_task("state", start=FromState(state, 2), steps=4, seed=8, guidance=1.0),
        a_task("picture", start=FromPicture(a_picture(size), 4), steps=9, guidance=6.0, seed=9),
        a_task("other size", size=Size(64, 64), steps=4, prompt="two boats at night"),
    ]
    together = drawn(family, *crowd, at=(0, 2, 1, 1))
    for task in crowd:
        alone = drawn(family, task)[task.id]
        np.testing.assert_allclose(together[task.id].latent, alone.latent, atol=1e-4, rtol=0)
        assert np.abs(together[task.id].pixels.astype(int) - alone.pixels.astype(int)).max() <= 1


@pytest.mark.parametrize("name", ["sdxl", "sd3", "flux-dev", "sana"])
def test_batch_invariant_rows_are_equal_to_the_bit(tiny_family: LoadTiny, name: str) -> None:
    family = tiny_family(name, batch_invariant=2)
    crowd = [a_task("a", steps=3), a_task("b", steps=2, seed=8, guidance=1.0), a_task("c", steps=4, seed=9)]
    together = drawn(family, *crowd, at=(0, 1, 1))
    for task in crowd:
        assert np.array_equal(together[task.id].latent, drawn(family, task)[task.id].latent)


def test_guidance_that_is_embedded_runs_one_half_and_says_what_it_does_not_read(tiny_family: LoadTiny) -> None:
    family, task = tiny_family("flux-dev"), a_task(negative_prompt="blurry")
    assert warnings_of(family, task)[0].startswith("negative_prompt: ignored")
    assert warnings_of(tiny_family("flux-schnell"), task) == ()
    forwards: list[int] = []
    family.denoiser.register_forward_pre_hook(
        lambda _, args, kwargs: forwards.append(len(kwargs["timestep"])), with_kwargs=True
    )
    with_it, without = drawn(family, task)["a"], drawn(family, a_task())["a"]
    assert set(forwards) == {1}
    assert np.array_equal(with_it.latent, without.latent)
    assert not np.allclose(drawn(family, a_task(guidance=8.0))["a"].latent, without.latent, atol=1e-3)


@pytest.mark.parametrize("name", SAVED)
def test_a_prompt_that_is_too_long_is_said(tiny_family: LoadTiny, name: str) -> None:
    assert warnings_of(tiny_family(name), a_task(prompt="x" * 20)) == ()
    (warning,) = warnings_of(tiny_family(name), a_task(prompt="fox " * 200))
    assert warning.startswith("prompt: only the first ")
