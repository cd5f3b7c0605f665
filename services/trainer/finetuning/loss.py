"""Training loss of latent diffusion: epsilon, v-prediction or flow matching, as the checkpoint's scheduler says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from shared.domain.errors import ModelError

FLOW_SCHEDULERS = ("FlowMatchEulerDiscreteScheduler", "FlowMatchHeunDiscreteScheduler")
PREDICTIONS = ("epsilon", "v_prediction", "sample")


@dataclass(frozen=True)
class Noised:
    """Noisy latents of some samples and what the model should predict from them, all on one device."""

    noisy: torch.Tensor
    """(B, C, h, w) float32."""
    timesteps: torch.Tensor
    """(B,), as the model reads them."""
    target: torch.Tensor
    """(B, C, h, w) float32."""
    weights: torch.Tensor
    """(B,) float32, weights of the samples' errors."""
    signal: torch.Tensor
    """(B, 1, 1, 1) float32, factor of the clean latents in `noisy`."""
    noise: torch.Tensor
    """(B, 1, 1, 1) float32, factor of the noise in `noisy`."""


class Objective(Protocol):
    """Noise process and target of a checkpoint."""

    def noised(self, latents: torch.Tensor, seeds: Sequence[int]) -> Noised:
        """Add noise to scaled latents (B, C, h, w); noise and timestep of each sample come from its own seed."""
        ...

    def estimate(self, prediction: torch.Tensor, at: Noised) -> torch.Tensor:
        """Return the clean latents (B, C, h, w) that a prediction implies, for self-conditioning."""
        ...


def loss_sum(prediction: torch.Tensor, at: Noised) -> torch.Tensor:
    """Return the sum over the samples of their weighted mean squared errors, a scalar in float32.

    Divided by the number of samples of the whole iteration, it is this part's share of the iteration's loss.
    """
    errors = (prediction.float() - at.target).square().flatten(1).mean(dim=1)
    return (errors * at.weights).sum()


class Denoising:
    """Objective of models that learn on a table of noise levels (DDPM, Ho et al. 2020; v: Salimans and Ho 2022)."""

    def __init__(self, config: Mapping[str, Any], min_snr_gamma: float = 0.0) -> None:
        """Read a scheduler_config.json; `min_snr_gamma` above 0 caps the weights of low noise (Hang et al. 2023)."""
        from diffusers import DDPMScheduler

        self.prediction = str(config.get("prediction_type", "epsilon"))
        if self.prediction not in PREDICTIONS:
            raise ModelError(f"prediction_type must be one of {', '.join(PREDICTIONS)} (got {self.prediction!r})")
        levels: torch.Tensor = DDPMScheduler.from_config(dict(config)).alphas_cumprod
        self._signal, self._noise = levels.sqrt(), (1 - levels).sqrt()
        self._weights = self._min_snr(levels, min_snr_gamma)

    def _min_snr(self, levels: torch.Tensor, gamma: float) -> torch.Tensor:
        """Return the weight of each timestep, Min-SNR-γ for the model's own target (Hang et al. 2023, §3.4)."""
        if not gamma:
            return torch.ones_like(levels)
        snr = levels / (1 - levels)
        if self.prediction == "sample":
            return snr.clamp(max=gamma)
        if self.prediction == "v_prediction":
            return snr.clamp(max=gamma) / (snr + 1)
        return gamma / snr.clamp(min=gamma)

    def noised(self, latents: torch.Tensor, seeds: Sequence[int]) -> Noised:
        noise, timesteps = [], []
        for seed in seeds:
            generator = torch.Generator().manual_seed(seed)
            noise.append(torch.randn(latents.shape[1:], generator=generator))
            timesteps.append(int(torch.randint(len(self._signal), (), generator=generator)))
        drawn, at = torch.stack(noise).to(latents.device), torch.tensor(timesteps)
        signal, amount = (_of_samples(table[at], latents) for table in (self._signal, self._noise))
        latents = latents.float()
        target = {"epsilon": drawn, "v_prediction": signal * drawn - amount * latents, "sample": latents}
        return Noised(
            noisy=signal * latents + amount * drawn,
            timesteps=at.to(latents.device),
            target=target[self.prediction],
            weights=self._weights[at].to(latents.device),
            signal=signal,
            noise=amount,
        )

    def estimate(self, prediction: torch.Tensor, at: Noised) -> torch.Tensor:
        prediction = prediction.float()
        if self.prediction == "sample":
            return prediction
        if self.prediction == "v_prediction":
            return at.signal * at.noisy - at.noise * prediction
        return (at.noisy - at.noise * prediction) / at.signal.clamp(min=1e-3)


class FlowMatching:
    """Objective of rectified flows with logit-normal timesteps (Esser et al. 2024, SD 3, §3.1)."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Read a scheduler_config.json; `shift` moves the noise levels as the sampler does."""
        self._trained = int(config.get("num_train_timesteps", 1000))
        self._shift = float(config.get("shift", 1.0))

    def noised(self, latents: torch.Tensor, seeds: Sequence[int]) -> Noised:
        noise, levels = [], []
        for seed in seeds:
            generator = torch.Generator().manual_seed(seed)
            noise.append(torch.randn(latents.shape[1:], generator=generator))
            levels.append(torch.sigmoid(torch.randn((), generator=generator)))
        drawn, level = torch.stack(noise).to(latents.device), torch.stack(levels)
        level = self._shift * level / (1 + (self._shift - 1) * level)
        amount, latents = _of_samples(level, latents), latents.float()
        return Noised(
            noisy=(1 - amount) * latents + amount * drawn,
            timesteps=(level * self._trained).to(latents.device),
            target=drawn - latents,
            weights=torch.ones(len(latents), device=latents.device),
            signal=1 - amount,
            noise=amount,
        )

    def estimate(self, prediction: torch.Tensor, at: Noised) -> torch.Tensor:
        return at.noisy - at.noise * prediction.float()


def objective_of(config: Mapping[str, Any], min_snr_gamma: float = 0.0) -> Objective:
    """Return the objective of a scheduler_config.json. Raise ModelError for a kind that is not supported."""
    name = str(config.get("_class_name", ""))
    if name in FLOW_SCHEDULERS:
        if config.get("use_dynamic_shifting"):
            raise ModelError("scheduler: use_dynamic_shifting is not supported in training (got true)")
        if min_snr_gamma:
            raise ModelError("min_snr_gamma: flow matching has no such weights; leave it at 0")
        return FlowMatching(config)
    if name.startswith("EDM") or "num_train_timesteps" not in config or config.get("use_flow_sigmas"):
        raise ModelError(f"scheduler: no training objective for {name or 'a scheduler without a class'}")
    return Denoising(config, min_snr_gamma)


def _of_samples(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return values of samples (B,) as (B, 1, 1, 1) on the device of `like`."""
    return values.float().view(-1, 1, 1, 1).to(like.device)
