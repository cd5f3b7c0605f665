"""DPM-Solver++ (2M) equals diffusers' own, for rows of any schedule, and a row's history belongs to the row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DPMSolverMultistepScheduler

from services.gpu_worker.engine.events import Advanced, Checkpointed, LatentCaptured
from services.gpu_worker.engine.rows import FromNoise, FromPicture, FromState
from services.gpu_worker.engine.samplers import DPMSolver2M, Position, make_sampler
from services.gpu_worker.families import Family, load_family
from services.gpu_worker.families.unet import UNetFamily
from services.gpu_worker.jobs.codecs import decode_checkpoint, encode_checkpoint
from shared.domain.errors import ModelError
from shared.domain.types import Size
from shared.models import find_card
from shared.models.schedules import dpm_timesteps, noise_process, same_noise_level, sampler_id
from tests.unit.gpu_worker.conftest import LoadFamily
from tests.unit.gpu_worker.engine.conftest import PLAN, STEPS, drive, finished, solo, task
from tests.unit.gpu_worker.engine.test_samplers import denoiser, noise_of

TRAINED = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012, "steps_offset": 1}
FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
CONFIGS: list[dict[str, Any]] = [
    *(
        TRAINED | {"prediction_type": prediction, "timestep_spacing": spacing}
        for prediction in ("epsilon", "v_prediction", "sample")
        for spacing in ("leading", "trailing", "linspace")
    ),
    TRAINED | {"use_karras_sigmas": True},
    TRAINED | {"solver_type": "heun", "lower_order_final": False, "final_sigmas_type": "sigma_min"},
    TRAINED | {"euler_at_final": True, "final_sigmas_type": "sigma_min"},
    {"beta_schedule": "squaredcos_cap_v2", "prediction_type": "v_prediction", "timestep_spacing": "trailing"},
    FLOW,
]
DPM = "dpm++2m"


def theirs(config: dict[str, Any], seed: int, total: int, **changes: Any) -> torch.Tensor:
    """The latent that diffusers' scheduler ends with."""
    scheduler = DPMSolverMultistepScheduler.from_config(config, **changes)
    scheduler.set_timesteps(total)
    latent = noise_of(seed)
    for timestep in scheduler.timesteps:
        latent = scheduler.step(denoiser(latent[None], timestep.view(1))[0], timestep, latent).prev_sample
    return latent


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: "-".join(map(str, c.values())))
def test_rows_of_different_schedules_equal_diffusers(config: dict[str, Any]) -> None:
    totals = [1, 2, 7, 20]
    sampler = make_sampler(DPM, config)
    latents = [noise_of(seed) for seed in range(len(totals))]
    history: list[torch.Tensor | None] = [None] * len(totals)
    for step in range(max(totals)):
        riding = [i for i, total in enumerate(totals) if step < total]
        schedules = [sampler.schedule(totals[i], (6, 5)) for i in riding]
        positions = [Position(one, step, previous=history[i]) for one, i in zip(schedules, riding, strict=True)]
        batch = torch.stack([latents[i] for i in riding])
        moved, clean = sampler.step(
            batch, denoiser(batch, torch.stack([p.timestep for p in positions])), positions, None
        )
        for at, i in enumerate(riding):
            latents[i], history[i] = moved[at], clean[at]
    for seed, total in enumerate(totals):
        torch.testing.assert_close(latents[seed], theirs(config, seed, total), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("spacing", ["leading", "trailing", "linspace"])
@pytest.mark.parametrize("steps", [1, 2, 7, 30, 50])
def test_timesteps_without_torch_are_diffusers_own(spacing: str, steps: int) -> None:
    config = TRAINED | {"timestep_spacing": spacing}
    ours = make_sampler(DPM, config).schedule(steps, (6, 5)).timesteps.numpy()
    np.testing.assert_array_equal(dpm_timesteps(config, steps), ours)


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_fresh_noise_in_the_first_step_keeps_the_noise_level(share: float) -> None:
    # a perfect denoiser of x0 = 0: everything in the latent is noise, whose scale the step must keep
    sampler = DPMSolver2M(TRAINED)
    schedule = sampler.schedule(10, (64, 64))
    epsilon, new = (torch.randn((2, 4, 64, 64), generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    latents = float(schedule.level[3, 1]) * epsilon
    moved, _ = sampler.step(latents, epsilon, [Position(schedule, 3), Position(schedule, 3, renew=share)], new)
    plain, _ = sampler.step(latents, epsilon, [Position(schedule, 3)] * 2, None)
    assert torch.equal(moved[0], plain[0])
    assert moved[1].std() == pytest.approx(float(schedule.level[4, 1]), rel=0.02)
    kept = torch.corrcoef(torch.stack([moved[1].flatten(), plain[1].flatten()]))[0, 1].item()
    assert kept == pytest.approx((1 - share**2) ** 0.5, abs=0.03)


def test_fresh_noise_of_the_sde_solvers_share_is_its_first_order_step() -> None:
    sampler = DPMSolver2M(TRAINED)
    schedule = sampler.schedule(10, (6, 5))
    (a, b), (a_next, b_next) = schedule.level[0].double().tolist(), schedule.level[1].double().tolist()
    share = (1 - (a * b_next / (a_next * b)) ** 2) ** 0.5  # √(1 − exp(−2h))
    latent, new = noise_of(1), noise_of(2)
    output = denoiser(latent[None], schedule.timesteps[:1])
    moved, _ = sampler.step(latent[None], output, [Position(schedule, 0, renew=share)], new[None])
    scheduler = DPMSolverMultistepScheduler.from_config(TRAINED, algorithm_type="sde-dpmsolver++")
    scheduler.set_timesteps(10)
    want = scheduler.step(output[0], scheduler.timesteps[0], latent, variance_noise=new).prev_sample
    torch.testing.assert_close(moved[0], want, atol=1e-5, rtol=1e-5)


def test_states_of_ddim_have_the_same_noise_where_the_key_is_the_same() -> None:
    config = TRAINED | {"timestep_spacing": "trailing"}
    assert noise_process(DPM, config) == noise_process("ddim", config) == sampler_id("ddim", config)
    assert noise_process(DPM, config | {"use_karras_sigmas": True}) != noise_process("ddim", config)
    for spacing in ("leading", "linspace"):
        spaced = config | {"timestep_spacing": spacing}
        assert noise_process(DPM, spaced) != noise_process("ddim", spaced)
    for steps in (5, 10, 50):
        own, other = (make_sampler(name, config).schedule(steps, (6, 5)).level for name in (DPM, "ddim"))
        torch.testing.assert_close(own[:-1], other[:-1], atol=1e-6, rtol=0)


@pytest.mark.parametrize("config", [{"timestep_spacing": "trailing"}, TRAINED | {"use_karras_sigmas": True}, FLOW])
def test_levels_that_are_called_the_same_have_the_same_sigma(config: dict[str, Any]) -> None:
    sampler = make_sampler(DPM, config)
    pairs = [((a, 10), (b, total)) for total in (5, 19, 25) for a in range(1, 10) for b in range(1, total)]
    same = [pair for pair in pairs if same_noise_level(DPM, config, *pair)]
    assert same
    for state, wanted in same:
        levels = [float(sampler.schedule(total, (6, 5)).level[step, 1]) for step, total in (state, wanted)]
        assert levels[0] == pytest.approx(levels[1], abs=1e-6)


def test_configurations_that_it_does_not_run_are_refused() -> None:
    for config, said in (
        ({"thresholding": True}, "thresholding must be false"),
        ({"use_dynamic_shifting": True}, "use_dynamic_shifting must be false"),
        ({"lambda_min_clipped": -5.1}, r"lambda_min_clipped must be -Infinity .*\(got -5.1\)"),
        ({"shift": 3.0, "_class_name": "FlowMatchEulerDiscreteScheduler"}, "use_flow_sigmas must be true"),
        ({"snr_shift_scale": 3.0}, "does not run CogVideoX"),
    ):
        with pytest.raises(ModelError, match=said):
            make_sampler(DPM, config)
    with pytest.raises(ModelError, match=r"eta must be 0 for dpm\+\+2m \(got 0.5\)"):
        make_sampler(DPM, {}, eta=0.5)


# in the engine


@pytest.mark.parametrize("guidance", [1.0, 2.5])
def test_a_whole_run_equals_the_pipeline_alone_and_in_a_mixed_batch(family: UNetFamily, guidance: float) -> None:
    size = Size(64, 64)
    pipeline = type(family.pipeline)(
        **dict(family.pipeline.components)
        | {"scheduler": DPMSolverMultistepScheduler.from_config(family.pipeline.scheduler.config)},
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    noise = family.initial_noise(size, torch.Generator().manual_seed(7))
    latent = pipeline(
        prompt="a red fox",
        num_inference_steps=STEPS,
        guidance_scale=guidance,
        height=64,
        width=64,
        latents=noise[None],
        output_type="latent",
    ).images[0]
    own = task(guidance=guidance, sampler=DPM)
    alone = solo(family, own)
    np.testing.assert_allclose(alone.latent, latent.numpy(), atol=1e-5)
    state = np.random.default_rng(1).standard_normal((4, 16, 16)).astype(np.float32)
    crowd = [
        task("ddim", seed=8),
        task("few steps", seed=9, sampler=DPM, steps=3),
        task("from a state", seed=10, sampler=DPM, steps=5, start=FromState(state, 2, 0.5)),
        task("another size", seed=11, sampler=DPM, size=Size(96, 64)),
    ]
    together = finished(drive(family, [(1, own), *enumerate(crowd)]))
    np.testing.assert_allclose(together["a"].latent, latent.numpy(), atol=1e-5)
    for other in crowd:
        np.testing.assert_allclose(together[other.id].latent, solo(family, other).latent, atol=1e-4)


def test_the_card_may_name_it(tiny_folder: object, family: UNetFamily) -> None:
    card = replace(find_card(f"{tiny_folder}/large"), sampler=DPM)
    assert np.array_equal(solo(load_family(card), task()).latent, solo(family, task(sampler=DPM)).latent)
    assert card.sampler_id.startswith("dpm++2m:")
    with pytest.raises(ModelError, match=r"sampler must be one of ddim, dpm\+\+2m, .* \(got 'euler_a'\)"):
        load_family(replace(card, sampler="euler_a"))


def test_company_changes_no_bit_when_batch_invariant(load: LoadFamily) -> None:
    crowd = [task("a", sampler=DPM), task("b", seed=8), task("c", seed=9, sampler=DPM, steps=4)]
    together = finished(drive(load(2), list(enumerate(crowd))))
    for one in crowd:
        assert np.array_equal(together[one.id].latent, solo(load(2), one).latent)


@pytest.mark.parametrize("start", [FromNoise(), FromState(np.ones((4, 16, 16), np.float32), 2, 0.5, noise_seed=3)])
def test_a_crash_resumes_with_the_history_to_the_bit(load: LoadFamily, start: Any) -> None:
    events = drive(load(2), [(0, task(start=start, sampler=DPM, checkpoint_every=3))])
    whole = finished(events)["a"]
    checkpoints = [event for event in events if isinstance(event, Checkpointed)]
    assert len(checkpoints) >= 2
    for saved in checkpoints:
        data = encode_checkpoint(saved.latent, saved.step, saved.generator_state, PLAN, previous=saved.previous)
        again, _ = decode_checkpoint(data)
        assert np.array_equal(solo(load(2), task(start=again, sampler=DPM)).latent, whole.latent)
        anew, _ = decode_checkpoint(encode_checkpoint(saved.latent, saved.step, saved.generator_state, PLAN))
        assert anew.previous is None
        differs = not np.array_equal(solo(load(2), task(start=anew, sampler=DPM)).latent, whole.latent)
        assert differs == (saved.step < STEPS - 1)  # the last step is of first order: it reads no history


def test_one_step_samplers_save_no_history(family: Family) -> None:
    saved = [event for event in drive(family, [(0, task(checkpoint_every=3))]) if isinstance(event, Checkpointed)]
    assert saved
    assert all(event.previous is None for event in saved)


def test_a_captured_state_is_a_plain_latent_that_starts_its_history_anew(load: LoadFamily) -> None:
    events = drive(load(2), [(0, task(sampler=DPM, capture_steps=(1, 4), preview=True))])
    whole = finished(events)["a"]
    first, later = (event for event in events if isinstance(event, LatentCaptured))
    assert all(event.preview is not None for event in events if isinstance(event, Advanced))
    for state in (first, later):
        one = task(start=FromState(state.latent, state.step), capture_steps=(state.step + 1,))
        solver, ddim = (drive(load(2), [(0, replace(one, sampler=name))]) for name in (DPM, "ddim"))
        after = [_captured(events, state.step + 1) for events in (solver, ddim)]
        np.testing.assert_allclose(after[0], after[1], atol=1e-5)  # the first step is DDIM's
        resumed = finished(solver)["a"]
        assert resumed.steps_run == STEPS - state.step
        assert not np.array_equal(resumed.latent, whole.latent)


def _captured(events: list[Any], step: int) -> np.ndarray:
    return next(event.latent for event in events if isinstance(event, LatentCaptured) and event.step == step)


def test_an_image_starts_its_history_anew_too(family: UNetFamily) -> None:
    picture = solo(family, task()).pixels
    runs = []
    for name in (DPM, "ddim"):
        one = task(seed=9, start=FromPicture(picture, 4), sampler=name, capture_steps=(5,))
        runs.append(_captured(drive(family, [(0, one)]), 5))
    np.testing.assert_allclose(runs[0], runs[1], atol=1e-5)
