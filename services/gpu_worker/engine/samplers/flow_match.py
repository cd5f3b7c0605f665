"""Euler steps along a rectified flow, for rows at any timesteps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from services.gpu_worker.engine.samplers.schedule import Position, Schedule, columns, renew, wide
from shared.domain.errors import ModelError


class FlowMatchEuler:
    """Euler steps along a rectified flow (SD3, SANA), with static or size-dependent shift of the sigmas."""

    name: ClassVar[str] = "flow_match_euler"
    multistep: ClassVar[bool] = False

    def __init__(self, config: dict[str, Any], *, patch: int = 2) -> None:
        """patch: latent cells per token side, for size-dependent shifting."""
        from diffusers import FlowMatchEulerDiscreteScheduler

        if "beta_schedule" in config and not config.get("use_flow_sigmas"):
            raise ModelError(f"sampler {self.name} needs flow matching, but scheduler_config.json has a beta_schedule")
        if config.get("invert_sigmas"):
            raise ModelError("scheduler_config.json: invert_sigmas must be false (got true)")
        self._scheduler = FlowMatchEulerDiscreteScheduler.from_config(_euler_config(config))
        self._patch = patch
        self._schedule = lru_cache(maxsize=256)(self._make_schedule)

    def schedule(self, steps: int, cells: tuple[int, ...]) -> Schedule:
        dynamic = bool(self._scheduler.config.use_dynamic_shifting)
        return self._schedule(steps, cells if dynamic else (0, 0))

    def _make_schedule(self, steps: int, cells: tuple[int, ...]) -> Schedule:
        scheduler = self._scheduler
        tokens = math.prod(cells[:-2]) * (cells[-2] // self._patch) * (cells[-1] // self._patch)
        mu = self._shift(tokens) if scheduler.config.use_dynamic_shifting else None
        scheduler.set_timesteps(steps, mu=mu, **self._unshifted(steps))
        sigmas = scheduler.sigmas.clone()
        levels = torch.stack([1 - sigmas, sigmas], dim=1)
        stochastic = 1.0 if scheduler.config.stochastic_sampling else 0.0
        return Schedule(
            timesteps=scheduler.timesteps.clone(),
            level=levels,
            left=levels[1:],
            renewed=torch.full((steps,), stochastic),
        )

    def _unshifted(self, steps: int) -> dict[str, Any]:
        """Return arguments with the sigmas before shifting; empty for the scheduler's own, from σ_max to σ_min."""
        return {}

    def _shift(self, tokens: int) -> float:
        """Compute diffusers' calculate_shift: μ grows linearly with the number of tokens."""
        c = self._scheduler.config
        slope = (c.max_shift - c.base_shift) / (c.max_image_seq_len - c.base_image_seq_len)
        return float(c.base_shift + slope * (tokens - c.base_image_seq_len))

    def step(
        self, latents: Tensor, outputs: Tensor, positions: Sequence[Position], noise: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        _, sigma, signal_next, sigma_next, shares = columns(positions)
        sigma, signal_next, sigma_next = (wide(column, latents) for column in (sigma, signal_next, sigma_next))
        clean = latents - sigma * outputs
        moved = latents + (sigma_next - sigma) * outputs
        if noise is None or not any(shares):
            return moved, clean
        renewing = wide(torch.tensor([share > 0 for share in shares]), latents)
        mixed = signal_next * clean + sigma_next * renew(latents + (1 - sigma) * outputs, shares, noise)
        return torch.where(renewing, mixed, moved), clean


class EvenFlowMatchEuler(FlowMatchEuler):
    """Flow-match Euler with FluxPipeline's sigmas: 1, (T−1)/T, … 1/T before shifting, so that the last step starts
    higher."""

    name: ClassVar[str] = "flow_match_euler_even"

    def _unshifted(self, steps: int) -> dict[str, Any]:
        return {"sigmas": np.linspace(1.0, 1 / steps, steps)}


def _euler_config(config: dict[str, Any]) -> dict[str, Any]:
    """Convert the configuration of a flow-matching DPM-Solver (SANA's checkpoints) to an Euler scheduler on its sigmas.

    The flow is the same: only the steps along it differ. The sampler `dpm++2m` takes the DPM-Solver's own steps.
    """
    if "flow_shift" not in config:
        return config
    if not config.get("use_flow_sigmas"):
        raise ModelError("scheduler_config.json: use_flow_sigmas must be true for flow_match_euler (got false)")
    return {"num_train_timesteps": config.get("num_train_timesteps", 1000), "shift": config["flow_shift"]}
