"""Our vectorised samplers equal diffusers' own, for whole runs and for rows of different schedules in one call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from diffusers import CogVideoXDDIMScheduler, DDIMScheduler, FlowMatchEulerDiscreteScheduler

from services.gpu_worker.engine.samplers import DDIM, EvenFlowMatchEuler, FlowMatchEuler, Position, make_sampler
from shared.domain.errors import ModelError
from shared.models.schedules import ddim_timesteps, same_noise_level, sampler_id

SHAPE = (4, 6, 5)


def denoiser(latents: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
    """Any function of both; contracts, so that runs stay in range."""
    scale = (timesteps.float() / 1000 + 0.3).view(-1, 1, 1, 1)
    return torch.tanh(latents * scale) + 0.1 * latents.roll(1, dims=-1)


def noise_of(seed: int) -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))


DDIM_CONFIGS = [
    {"prediction_type": prediction, "timestep_spacing": spacing, "clip_sample": clip, "set_alpha_to_one": one}
    for prediction in ("epsilon", "v_prediction", "sample")
    for spacing in ("leading", "trailing", "linspace")
    for clip, one in ((False, True), (True, False))
]


@pytest.mark.parametrize("eta", [0.0, 0.7])
@pytest.mark.parametrize("config", DDIM_CONFIGS, ids=lambda c: "-".join(map(str, c.values())))
def test_ddim_equals_diffusers_for_rows_of_different_schedules(config: dict[str, Any], eta: float) -> None:
    config = config | {"beta_schedule": "squaredcos_cap_v2", "steps_offset": 1, "clip_sample_range": 3.0}
    totals = [7, 10, 30]
    expected = []
    for seed, total in enumerate(totals):
        scheduler = DDIMScheduler.from_config(config)
        scheduler.set_timesteps(total)
        latent, noises = noise_of(seed), torch.Generator().manual_seed(100 + seed)
        for timestep in scheduler.timesteps:
            output = denoiser(latent[None], timestep.view(1))[0]
            variance = torch.randn(SHAPE, generator=noises)
            latent = scheduler.step(output, int(timestep), latent, eta=eta, variance_noise=variance).prev_sample
        expected.append(latent)

    sampler = make_sampler("ddim", config, eta=eta)
    latents = [noise_of(seed) for seed in range(len(totals))]
    generators = [torch.Generator().manual_seed(100 + seed) for seed in range(len(totals))]
    done = [0] * len(totals)
    while any(k < total for k, total in zip(done, totals, strict=True)):
        riding = [i for i, total in enumerate(totals) if done[i] < total]
        positions = [Position(sampler.schedule(totals[i], (6, 5)), done[i]) for i in riding]
        noise = torch.stack([torch.randn(SHAPE, generator=generators[i]) for i in riding])
        batch = torch.stack([latents[i] for i in riding])
        outputs = denoiser(batch, torch.stack([p.timestep for p in positions]))
        moved, _ = sampler.step(batch, outputs, positions, noise if eta else None)
        for at, i in enumerate(riding):
            latents[i], done[i] = moved[at], done[i] + 1
    for got, want in zip(latents, expected, strict=True):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shift", [1.0, 3.0])
@pytest.mark.parametrize("total", [7, 30])
def test_ddim_equals_diffusers_on_cogvideox_noise_levels(shift: float, total: int) -> None:
    config = {"prediction_type": "v_prediction", "timestep_spacing": "trailing", "rescale_betas_zero_snr": True}
    scheduler = CogVideoXDDIMScheduler(**config, snr_shift_scale=shift)  # its step ignores clip_sample, true here
    scheduler.set_timesteps(total)
    sampler = make_sampler("ddim", dict(scheduler.config))
    schedule = sampler.schedule(total, (6, 5))
    assert {each.dtype for each in (schedule.level, schedule.left, schedule.renewed)} == {torch.float32}
    ours = theirs = noise_of(1)
    for done, timestep in enumerate(scheduler.timesteps):
        theirs = scheduler.step(denoiser(theirs[None], timestep.view(1))[0], int(timestep), theirs).prev_sample
        moved, _ = sampler.step(
            ours[None], denoiser(ours[None], timestep.view(1)), [Position(schedule, done)], noise=None
        )
        ours = moved[0]
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4, check_dtype=False)


@pytest.mark.parametrize(
    "config",
    [
        {"shift": 1.0},
        {"shift": 3.0},
        {"shift": 3.0, "use_karras_sigmas": True},
        {"use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 1.15},
        {"shift": 3.0, "shift_terminal": 0.1},
    ],
    ids=["plain", "static", "karras", "dynamic", "terminal"],
)
def test_flow_match_equals_diffusers(config: dict[str, Any]) -> None:
    totals = [4, 9]
    sampler = FlowMatchEuler(config)
    latents = [noise_of(i) for i in range(2)]
    schedules = [sampler.schedule(total, (64, 64)) for total in totals]
    for step in range(max(totals)):
        riding = [i for i in range(2) if step < totals[i]]
        positions = [Position(schedules[i], step) for i in riding]
        batch = torch.stack([latents[i] for i in riding])
        outputs = denoiser(batch, torch.stack([p.timestep for p in positions]))
        moved, _ = sampler.step(batch, outputs, positions, None)
        for at, i in enumerate(riding):
            latents[i] = moved[at]
    for seed, total in enumerate(totals):
        scheduler = FlowMatchEulerDiscreteScheduler.from_config(config)
        # 64 × 64 cells in 2 × 2 tokens are 1024 of base 256 … max 4096
        mu = 0.5 + (1.15 - 0.5) * (1024 - 256) / (4096 - 256)
        scheduler.set_timesteps(total, **({"mu": mu} if config.get("use_dynamic_shifting") else {}))
        latent = noise_of(seed)
        for timestep in scheduler.timesteps:
            latent = scheduler.step(denoiser(latent[None], timestep.view(1))[0], timestep, latent).prev_sample
        torch.testing.assert_close(latents[seed], latent, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("sampler", "state", "wanted"),
    [
        (FlowMatchEuler({"shift": 3.0}), (10, 50), (20, 99)),
        (EvenFlowMatchEuler({"use_dynamic_shifting": True}), (10, 50), (5, 25)),
        (EvenFlowMatchEuler({"shift": 1.0}), (3, 4), (21, 28)),
    ],
)
def test_levels_that_are_called_the_same_have_the_same_sigma(
    sampler: FlowMatchEuler, state: tuple[int, int], wanted: tuple[int, int]
) -> None:
    assert same_noise_level(sampler.name, {}, state, wanted)
    assert not same_noise_level(sampler.name, {"shift_terminal": 0.1}, state, wanted)
    sigmas = [float(sampler.schedule(total, (32, 32)).level[step, 1]) for step, total in (state, wanted)]
    assert sigmas[0] == pytest.approx(sigmas[1], abs=1e-6)
    assert not same_noise_level(sampler.name, {}, (state[0] + 1, state[1]), wanted)


def test_a_flow_dpm_solvers_configuration_becomes_eulers_on_its_shift() -> None:
    sana = {"_class_name": "DPMSolverMultistepScheduler", "use_flow_sigmas": True, "flow_shift": 3.0}
    ours, eulers = FlowMatchEuler(sana), FlowMatchEuler({"shift": 3.0})
    assert torch.equal(ours.schedule(20, (8, 8)).level, eulers.schedule(20, (8, 8)).level)
    with pytest.raises(ModelError, match="use_flow_sigmas must be true"):
        FlowMatchEuler({**sana, "use_flow_sigmas": False})


@pytest.mark.parametrize("sampler", [DDIM({"prediction_type": "v_prediction"}), FlowMatchEuler({"shift": 3.0})])
def test_add_noise_equals_diffusers(sampler: DDIM | FlowMatchEuler) -> None:
    schedule = sampler.schedule(10, (6, 5))
    scheduler = sampler._scheduler
    clean, noise = noise_of(1), noise_of(2)
    add_noise = scheduler.add_noise if hasattr(scheduler, "add_noise") else None
    if add_noise is not None:
        want = add_noise(clean[None], noise[None], schedule.timesteps[4:5])[0]
    else:
        want = scheduler.scale_noise(clean[None], schedule.timesteps[4:5], noise[None])[0]
    torch.testing.assert_close(schedule.add_noise(clean, noise, 4), want, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("sampler", [DDIM({"timestep_spacing": "trailing"}), FlowMatchEuler({"shift": 2.0})])
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_fresh_noise_keeps_the_noise_level_and_touches_only_its_row(
    sampler: DDIM | FlowMatchEuler, share: float
) -> None:
    # a perfect denoiser of x0 = 0: everything in the latent is noise, whose scale the step must keep
    schedule = sampler.schedule(10, (64, 64))
    positions = [Position(schedule, 3), Position(schedule, 3, renew=share)]
    signal, spread = schedule.level[3].tolist()
    epsilon = torch.randn((2, 4, 64, 64), generator=torch.Generator().manual_seed(0))
    new = torch.randn((2, 4, 64, 64), generator=torch.Generator().manual_seed(1))
    moved, _ = sampler.step(spread * epsilon, epsilon, positions, new)
    plain, _ = sampler.step(spread * epsilon, epsilon, positions[:1] * 2, None)
    assert torch.equal(moved[0], plain[0])
    assert moved[1].std() == pytest.approx(plain[1].std().item(), rel=0.02)
    kept = torch.corrcoef(torch.stack([moved[1].flatten(), plain[1].flatten()]))[0, 1].item()
    assert kept == pytest.approx((1 - share**2) ** 0.5, abs=0.03)
    assert signal > 0


def test_thresholding_and_unknown_samplers_are_refused() -> None:
    with pytest.raises(ModelError, match="thresholding"):
        DDIM({"thresholding": True})
    with pytest.raises(ModelError, match="invert_sigmas"):
        FlowMatchEuler({"invert_sigmas": True})
    with pytest.raises(ModelError, match=r"eta must be between 0 and 1 \(got 2\)"):
        DDIM({}, eta=2)
    with pytest.raises(ModelError, match="got 'euler_a'"):
        make_sampler("euler_a", {})


def test_the_id_of_a_sampler_follows_what_changes_a_step() -> None:
    plain = sampler_id("ddim", {"prediction_type": "epsilon", "_diffusers_version": "0.1"})
    assert plain == sampler_id("ddim", {"prediction_type": "epsilon", "_diffusers_version": "0.2"})
    assert plain.startswith("ddim:")
    assert plain != sampler_id("ddim", {"prediction_type": "v_prediction"})
    assert plain != sampler_id("ddim", {"prediction_type": "epsilon"}, eta=0.5)


@pytest.mark.parametrize("name", ["ddim", "dpm++2m"])
@pytest.mark.parametrize("steps", [61, 103, 121, 122])
def test_a_trailing_schedule_has_exactly_t_steps(name: str, steps: int) -> None:
    config = {"timestep_spacing": "trailing"}
    schedule = make_sampler(name, config).schedule(steps, (6, 5))
    assert (schedule.steps, len(schedule.level), len(schedule.renewed)) == (steps, steps + 1, steps)
    assert schedule.timesteps.tolist() == ddim_timesteps(config, steps).tolist()
    assert schedule.timesteps.min() >= 0  # diffusers' own has one more, -1


@pytest.mark.parametrize(
    ("name", "config"), [("ddim", {"shift": 3.0}), ("flow_match_euler", {"beta_schedule": "scaled_linear"})]
)
def test_a_sampler_of_another_kind_of_model_is_refused(name: str, config: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=name):
        make_sampler(name, config)


@pytest.mark.parametrize("spacing", ["leading", "trailing", "linspace"])
@pytest.mark.parametrize("steps", [1, 7, 20, 30, 50])
def test_timesteps_without_torch_are_diffusers_own(spacing: str, steps: int) -> None:
    config = {"timestep_spacing": spacing, "steps_offset": 1}
    scheduler = DDIMScheduler.from_config(config)
    scheduler.set_timesteps(steps)
    np.testing.assert_array_equal(ddim_timesteps(config, steps), scheduler.timesteps.numpy())
