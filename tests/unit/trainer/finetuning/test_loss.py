"""Objectives against diffusers' own schedulers, and draws that do not depend on how a batch is split."""

from __future__ import annotations

import pytest
import torch
from diffusers import DDIMScheduler, FlowMatchEulerDiscreteScheduler

from services.trainer.finetuning.loss import Denoising, Noised, loss_sum, objective_of
from shared.domain.errors import ModelError

LATENTS = torch.randn(5, 4, 6, 6, generator=torch.Generator().manual_seed(3))
SEEDS = [11, 12, 13, 14, 15]


def ddim(prediction: str = "epsilon") -> dict[str, object]:
    return dict(DDIMScheduler(beta_schedule="scaled_linear", prediction_type=prediction).config) | {
        "_class_name": "DDIMScheduler"
    }


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "sample"])
def test_noise_and_target_are_those_of_the_scheduler(prediction: str) -> None:
    at = objective_of(ddim(prediction)).noised(LATENTS, SEEDS)
    scheduler = DDIMScheduler(beta_schedule="scaled_linear", prediction_type=prediction)
    noise = (at.noisy - at.signal * LATENTS) / at.noise
    assert torch.allclose(scheduler.add_noise(LATENTS, noise, at.timesteps), at.noisy, atol=1e-5)
    wanted = {"epsilon": noise, "v_prediction": scheduler.get_velocity(LATENTS, noise, at.timesteps), "sample": LATENTS}
    assert torch.allclose(at.target, wanted[prediction], atol=1e-3)  # the noise was divided by a small level


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "sample"])
def test_the_estimate_of_a_right_prediction_is_the_clean_latent(prediction: str) -> None:
    objective = objective_of(ddim(prediction))
    at = objective.noised(LATENTS, SEEDS)
    assert torch.allclose(objective.estimate(at.target, at), LATENTS, atol=1e-3)


def test_flow_matching_has_the_noise_levels_of_the_shifted_scheduler() -> None:
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    objective = objective_of(dict(scheduler.config) | {"_class_name": "FlowMatchEulerDiscreteScheduler"})
    at = objective.noised(LATENTS, SEEDS)
    assert torch.allclose(at.timesteps, at.noise.flatten() * 1000)
    assert torch.allclose(at.noisy + (1 - at.noise) * at.target, LATENTS + at.target, atol=1e-5)  # x₁ = noise
    assert torch.allclose(objective.estimate(at.target, at), LATENTS, atol=1e-5)
    flat = objective_of(dict(scheduler.config) | {"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 1.0})
    plain = flat.noised(LATENTS, SEEDS).noise
    assert torch.allclose(3 * plain / (1 + 2 * plain), at.noise, atol=1e-6)


def test_a_part_of_a_batch_sees_the_numbers_of_the_whole() -> None:
    objective = objective_of(ddim())
    whole, part = objective.noised(LATENTS, SEEDS), objective.noised(LATENTS[2:4], SEEDS[2:4])
    assert torch.equal(whole.noisy[2:4], part.noisy)
    assert torch.equal(whole.timesteps[2:4], part.timesteps)
    assert len(set(whole.timesteps.tolist())) == 5


@pytest.mark.parametrize(("prediction", "at_high", "at_low"), [("epsilon", 1.0, 5.0), ("v_prediction", 0.5, 5.0)])
def test_min_snr_caps_the_weight_of_low_noise(prediction: str, at_high: float, at_low: float) -> None:
    """Hang et al. 2023, §3.4: min(SNR, γ) over SNR for noise, over SNR + 1 for velocity."""
    objective = objective_of(ddim(prediction), 5.0)
    assert isinstance(objective, Denoising)
    levels = DDIMScheduler(beta_schedule="scaled_linear").alphas_cumprod
    snr = levels / (1 - levels)
    one, small = int((snr - 1).abs().argmin()), 0
    assert objective._weights[one].item() == pytest.approx(at_high, rel=0.02)
    below = snr[small].item() + (prediction == "v_prediction")
    assert objective._weights[small].item() == pytest.approx(at_low / below, rel=1e-4)


def test_the_loss_is_the_weighted_mean_error_of_each_sample_in_sum() -> None:
    ones = torch.ones(2, 1, 1, 1)
    at = Noised(ones, ones, torch.zeros(2, 4, 2, 2), torch.tensor([1.0, 3.0]), ones, ones)
    assert loss_sum(torch.full((2, 4, 2, 2), 2.0), at).item() == 16


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"_class_name": "EDMEulerScheduler", "num_train_timesteps": 1000}, "no training objective for EDMEuler"),
        ({"_class_name": "DDIMScheduler", "num_train_timesteps": 1000, "prediction_type": "x"}, "prediction_type must"),
        ({"_class_name": "FlowMatchEulerDiscreteScheduler", "use_dynamic_shifting": True}, "use_dynamic_shifting"),
    ],
)
def test_other_schedulers_are_refused(config: dict[str, object], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        objective_of(config)
