"""DDIM: one step for rows at any timesteps, over diffusers' own tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from services.gpu_worker.engine.samplers.schedule import Position, Schedule, columns, renew, wide
from shared.domain.errors import ModelError


class DDIM:
    """DDIM (Song et al. 2021, eq. 12) with η ≥ 0 for ε, v and x0 prediction, over diffusers' own tables.

    A configuration of CogVideoX (`snr_shift_scale`) has shifted noise levels, and never clips.
    """

    name: ClassVar[str] = "ddim"
    multistep: ClassVar[bool] = False

    def __init__(self, config: dict[str, Any], *, eta: float = 0.0) -> None:
        from diffusers import CogVideoXDDIMScheduler, DDIMScheduler

        if config.get("thresholding"):
            raise ModelError(
                "scheduler_config.json: thresholding must be false (it depends on the whole image; got true)"
            )
        if "shift" in config or config.get("use_flow_sigmas"):
            raise ModelError(
                "sampler ddim needs a trained noise schedule, but scheduler_config.json is of flow matching"
            )
        if eta < 0 or eta > 1:
            raise ModelError(f"card.json: eta must be between 0 and 1 (got {eta})")
        shifted = "snr_shift_scale" in config
        self._scheduler = (CogVideoXDDIMScheduler if shifted else DDIMScheduler).from_config(config)
        self._prediction = str(self._scheduler.config.prediction_type)
        clips = self._scheduler.config.clip_sample and not shifted
        self._clip = float(self._scheduler.config.clip_sample_range) if clips else None
        self._eta = eta
        self._schedule = lru_cache(maxsize=256)(self._make_schedule)

    def schedule(self, steps: int, cells: tuple[int, ...]) -> Schedule:
        return self._schedule(steps)

    def _make_schedule(self, steps: int) -> Schedule:
        scheduler = self._scheduler
        scheduler.set_timesteps(steps)
        timesteps = scheduler.timesteps[:steps].clone()  # trailing spacing rounds to T + 1 of them for some T (61)
        bars = scheduler.alphas_cumprod  # CogVideoX's are float64
        before = bars[timesteps]
        # diffusers steps back by a whole stride, not to the next timestep: they differ where T does not divide 1000
        previous = timesteps - scheduler.config.num_train_timesteps // steps
        after = torch.where(previous >= 0, bars[previous.clamp(min=0)], scheduler.final_alpha_cumprod)
        variance = (1 - after) / (1 - before) * (1 - before / after)
        scale = (1 - after).clamp(min=1e-12) ** 0.5
        return Schedule(
            timesteps=timesteps,
            level=_levels(before, after),
            left=torch.stack([after**0.5, (1 - after) ** 0.5], dim=1).float(),
            renewed=(self._eta * variance.clamp(min=0) ** 0.5 / scale).clamp(max=1).float(),
        )

    def step(
        self, latents: Tensor, outputs: Tensor, positions: Sequence[Position], noise: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        a, b, a_next, b_next, shares = columns(positions)
        a, b, a_next, b_next = (wide(column, latents) for column in (a, b, a_next, b_next))
        clean, epsilon = predicted(self._prediction, latents, outputs, a, b)
        if self._clip is not None:
            clean = clean.clamp(-self._clip, self._clip)  # ε̂ stays as predicted, as in diffusers
        return a_next * clean + b_next * renew(epsilon, shares, noise), clean


def predicted(kind: str, latents: Tensor, outputs: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the clean latents x̂0 and the noise ε̂ that outputs of this prediction type state; latents = a·x̂0 + b·ε̂."""
    if kind == "epsilon":
        return (latents - b * outputs) / a, outputs
    if kind == "sample":
        return outputs, (latents - a * outputs) / b
    if kind == "flow_prediction":
        return latents - b * outputs, latents + a * outputs
    return a * latents - b * outputs, a * outputs + b * latents


def _levels(before: Tensor, after: Tensor) -> Tensor:
    """Return (T+1, 2): signal and noise scale before every step, and after the last."""
    bars = torch.cat([before, after[-1:]])
    return torch.stack([bars**0.5, (1 - bars) ** 0.5], dim=1).float()
