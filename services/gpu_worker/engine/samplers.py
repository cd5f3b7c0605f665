"""One DDIM or flow-match Euler step for a batch of rows, each at its own timestep of its own schedule."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from shared.domain.errors import ModelError
from shared.models.schedules import sampler_id


@dataclass(frozen=True, eq=False)
class Schedule:
    """A run of T steps: the timestep that the denoiser gets at each step, and the numbers that its update needs."""

    timesteps: Tensor
    """(T,) int64 or float32, as the denoiser takes them."""
    level: Tensor
    """(T+1, 2) float32: signal and noise scale of the latent before step k; row T: after the last step."""
    left: Tensor
    """(T, 2) float32: signal and noise scale after step k. DDIM with rounded timesteps: not equal to level[k+1]."""
    renewed: Tensor
    """(T,) float32 in [0, 1]: share of the noise that step k renews (0: deterministic)."""

    @cached_property  # reading a tensor's length costs more than all other work between two steps
    def steps(self) -> int:
        return len(self.timesteps)


@dataclass(frozen=True, eq=False)
class Position:
    """One row's place in its schedule: `done` steps are behind it, and the next step renews `renew` of its noise."""

    schedule: Schedule
    done: int
    renew: float = 0.0
    """Share of the noise replaced in this step, on top of the schedule's own renewal (see Sampler.step)."""

    @property
    def timestep(self) -> Tensor:
        return self.schedule.timesteps[self.done]

    @property
    def renewed(self) -> float:
        return max(self.renew, float(self.schedule.renewed[self.done]))


class Sampler(Protocol):
    """A sampler whose step is vectorised over rows; whole runs equal diffusers' own (tested)."""

    config_hash: str
    """`name:hash` for CompatKey.sampler."""

    def schedule(self, steps: int, latent_hw: tuple[int, int]) -> Schedule:
        """Return the schedule of a run of `steps`. Flow matching with dynamic shifting also reads the latent's size."""
        ...

    def add_noise(self, latent: Tensor, noise: Tensor, schedule: Schedule, done: int) -> Tensor:
        """Bring a clean latent to the noise level of a run with `done` steps behind it."""
        ...

    def step(
        self, latents: Tensor, outputs: Tensor, positions: Sequence[Position], noise: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Run one step for B rows.

        latents, outputs, noise: (B, …) float32. `noise` is read for positions that renew noise; None when no position
        does. Returns the latents one step later and the clean latents that the model predicts, both (B, …).

        Fresh noise (NIRVANA §9): both samplers write the next latent as a'·x̂0 + b'·ε̂. a', b' are the signal and noise
        scale after the step; x̂0, ε̂ are the model's own prediction. Renewing a share f makes it
            a'·x̂0 + b'·(√(1−f²)·ε̂ + f·ε_new),
        which keeps the noise level for every f in [0, 1]. This is DDIM's eq. 12 with σ = f·b', a family of steps with
        equal marginals, and at f = 1 flow matching's stochastic step. A reused state gets the request's noise by one
        such step as its first: this needs no extra forward, and f = 0 is the plain step.
        """
        ...


def _wide(values: Tensor, like: Tensor) -> Tensor:
    """Reshape (B,) to (B, 1, …), to multiply with `like`."""
    return values.to(like.device).view(-1, *[1] * (like.dim() - 1))


def _columns(positions: Sequence[Position]) -> tuple[Tensor, Tensor, Tensor, Tensor, list[float]]:
    """Return per row the signal and noise scale before and after the step, and the share of noise that it renews."""
    before = torch.stack([p.schedule.level[p.done] for p in positions])
    after = torch.stack([p.schedule.left[p.done] for p in positions])
    return before[:, 0], before[:, 1], after[:, 0], after[:, 1], [p.renewed for p in positions]


def _renew(epsilon: Tensor, shares: list[float], noise: Tensor | None) -> Tensor:
    """Compute √(1−f²)·ε̂ + f·ε_new per row; without noise or with f = 0 in all rows, ε̂ is returned unchanged."""
    if noise is None or not any(shares):
        return epsilon
    keep = _wide(torch.tensor([(1 - share**2) ** 0.5 for share in shares]), epsilon)
    return keep * epsilon + _wide(torch.tensor(shares), epsilon) * noise


class DDIM:
    """DDIM (Song et al. 2021, eq. 12) with η ≥ 0 for ε, v and x0 prediction, over diffusers' own tables."""

    name: ClassVar[str] = "ddim"

    def __init__(self, config: dict[str, Any], *, eta: float = 0.0) -> None:
        from diffusers import DDIMScheduler

        if config.get("thresholding"):
            raise ModelError(
                "scheduler_config.json: thresholding must be false (it depends on the whole image; got true)"
            )
        if eta < 0 or eta > 1:
            raise ModelError(f"card.json: eta must be between 0 and 1 (got {eta})")
        self._scheduler = DDIMScheduler.from_config(config)
        self._prediction = str(self._scheduler.config.prediction_type)
        self._clip = float(self._scheduler.config.clip_sample_range) if self._scheduler.config.clip_sample else None
        self._eta = eta
        self.config_hash = sampler_id(self.name, config, eta)
        self._schedule = lru_cache(maxsize=256)(self._make_schedule)

    def schedule(self, steps: int, latent_hw: tuple[int, int]) -> Schedule:
        return self._schedule(steps)

    def _make_schedule(self, steps: int) -> Schedule:
        scheduler = self._scheduler
        scheduler.set_timesteps(steps)
        timesteps = scheduler.timesteps.clone()
        bars = scheduler.alphas_cumprod
        before = bars[timesteps]
        # diffusers steps back by a whole stride, not to the next timestep: they differ where T does not divide 1000
        previous = timesteps - scheduler.config.num_train_timesteps // steps
        after = torch.where(previous >= 0, bars[previous.clamp(min=0)], scheduler.final_alpha_cumprod)
        variance = (1 - after) / (1 - before) * (1 - before / after)
        scale = (1 - after).clamp(min=1e-12) ** 0.5
        return Schedule(
            timesteps=timesteps,
            level=_levels(before, after),
            left=torch.stack([after**0.5, (1 - after) ** 0.5], dim=1),
            renewed=(self._eta * variance.clamp(min=0) ** 0.5 / scale).clamp(max=1),
        )

    def add_noise(self, latent: Tensor, noise: Tensor, schedule: Schedule, done: int) -> Tensor:
        signal, spread = schedule.level[done].tolist()
        return signal * latent + spread * noise

    def step(
        self, latents: Tensor, outputs: Tensor, positions: Sequence[Position], noise: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        a, b, a_next, b_next, shares = _columns(positions)
        a, b, a_next, b_next = (_wide(column, latents) for column in (a, b, a_next, b_next))
        if self._prediction == "epsilon":
            clean, epsilon = (latents - b * outputs) / a, outputs
        elif self._prediction == "sample":
            clean, epsilon = outputs, (latents - a * outputs) / b
        else:
            clean, epsilon = a * latents - b * outputs, a * outputs + b * latents
        if self._clip is not None:
            clean = clean.clamp(-self._clip, self._clip)  # ε̂ stays as predicted, as in diffusers
        return a_next * clean + b_next * _renew(epsilon, shares, noise), clean


def _levels(before: Tensor, after: Tensor) -> Tensor:
    """Return (T+1, 2): signal and noise scale before every step, and after the last."""
    bars = torch.cat([before, after[-1:]])
    return torch.stack([bars**0.5, (1 - bars) ** 0.5], dim=1)


class FlowMatchEuler:
    """Euler steps along a rectified flow (SD3, SANA), with static or size-dependent shift of the sigmas."""

    name: ClassVar[str] = "flow_match_euler"

    def __init__(self, config: dict[str, Any], *, patch: int = 2) -> None:
        """patch: latent cells per token side, for size-dependent shifting."""
        from diffusers import FlowMatchEulerDiscreteScheduler

        if config.get("invert_sigmas"):
            raise ModelError("scheduler_config.json: invert_sigmas must be false (got true)")
        self._scheduler = FlowMatchEulerDiscreteScheduler.from_config(_euler_config(config))
        self._patch = patch
        self.config_hash = sampler_id(self.name, config)
        self._schedule = lru_cache(maxsize=256)(self._make_schedule)

    def schedule(self, steps: int, latent_hw: tuple[int, int]) -> Schedule:
        dynamic = bool(self._scheduler.config.use_dynamic_shifting)
        return self._schedule(steps, latent_hw if dynamic else (0, 0))

    def _make_schedule(self, steps: int, latent_hw: tuple[int, int]) -> Schedule:
        scheduler = self._scheduler
        tokens = (latent_hw[0] // self._patch) * (latent_hw[1] // self._patch)
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

    def add_noise(self, latent: Tensor, noise: Tensor, schedule: Schedule, done: int) -> Tensor:
        """Compute MoDM eq. 2: σ·ε + (1 − σ)·x."""
        signal, spread = schedule.level[done].tolist()
        return signal * latent + spread * noise

    def step(
        self, latents: Tensor, outputs: Tensor, positions: Sequence[Position], noise: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        _, sigma, signal_next, sigma_next, shares = _columns(positions)
        sigma, signal_next, sigma_next = (_wide(column, latents) for column in (sigma, signal_next, sigma_next))
        clean = latents - sigma * outputs
        moved = latents + (sigma_next - sigma) * outputs
        if noise is None or not any(shares):
            return moved, clean
        renewing = _wide(torch.tensor([share > 0 for share in shares]), latents)
        mixed = signal_next * clean + sigma_next * _renew(latents + (1 - sigma) * outputs, shares, noise)
        return torch.where(renewing, mixed, moved), clean


class EvenFlowMatchEuler(FlowMatchEuler):
    """Flow-match Euler with FluxPipeline's sigmas: 1, (T−1)/T, … 1/T before shifting, so that the last step starts
    higher."""

    name: ClassVar[str] = "flow_match_euler_even"

    def _unshifted(self, steps: int) -> dict[str, Any]:
        return {"sigmas": np.linspace(1.0, 1 / steps, steps)}


def _euler_config(config: dict[str, Any]) -> dict[str, Any]:
    """Convert the configuration of a flow-matching DPM-Solver (SANA's checkpoints) to an Euler scheduler on its sigmas.

    The multistep updates of a DPM-Solver need the outputs of earlier steps. A latent from the cache or from a
    checkpoint does not carry those; the flow is the same.
    """
    if "flow_shift" not in config:
        return config
    if not config.get("use_flow_sigmas"):
        raise ModelError("scheduler_config.json: use_flow_sigmas must be true for flow_match_euler (got false)")
    return {"num_train_timesteps": config.get("num_train_timesteps", 1000), "shift": config["flow_shift"]}


FLOWS = {kind.name: kind for kind in (FlowMatchEuler, EvenFlowMatchEuler)}


def make_sampler(name: str, config: dict[str, Any], *, eta: float = 0.0, patch: int = 2) -> Sampler:
    """Return the sampler that a card names. Raises ModelError for an unknown name or an unsupported configuration."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # diffusers, on configurations older than itself
        if name == DDIM.name:
            return DDIM(config, eta=eta)
        if name in FLOWS:
            return FLOWS[name](config, patch=patch)
    raise ModelError(f"card.json: sampler must be {DDIM.name!r} or one of {', '.join(FLOWS)} (got {name!r})")
