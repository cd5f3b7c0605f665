"""Schedules, the places of rows in them, and the sampler's port."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

import torch
from torch import Tensor


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
    bend: Tensor | None = None
    """(T,) float32: weight of the change since the previous clean latent in step k; None in one-step samplers."""

    @cached_property  # reading a tensor's length costs more than all other work between two steps
    def steps(self) -> int:
        return len(self.timesteps)

    def add_noise(self, latent: Tensor, noise: Tensor, done: int) -> Tensor:
        """Bring a clean latent to the noise level after `done` steps; MoDM eq. 2 for flow matching: σ·ε + (1 − σ)·x."""
        signal, spread = self.level[done].tolist()
        return signal * latent + spread * noise

    def noise_of(self, latent: Tensor, clean: Tensor, done: int) -> Tensor:
        """Return the noise that brings `clean` to `latent` after `done` steps, the inverse of `add_noise`.

        done: below `steps`, since no noise is left after the last."""
        signal, spread = self.level[done].tolist()
        return (latent - signal * clean) / spread


@dataclass(frozen=True, eq=False)
class Position:
    """One row's place in its schedule: `done` steps are behind it, and the next step renews `renew` of its noise."""

    schedule: Schedule
    done: int
    renew: float = 0.0
    """Share of the noise replaced in this step, on top of the schedule's own renewal (see Sampler.step)."""
    previous: Tensor | None = None
    """The clean latent that the model predicted in the step before, for multistep samplers; None: no history."""

    @property
    def timestep(self) -> Tensor:
        return self.schedule.timesteps[self.done]

    @property
    def renewed(self) -> float:
        return max(self.renew, float(self.schedule.renewed[self.done]))


class Sampler(Protocol):
    """A sampler whose step is vectorised over rows; whole runs equal diffusers' own (tested)."""

    multistep: ClassVar[bool]
    """True if a step reads `Position.previous`."""

    def schedule(self, steps: int, cells: tuple[int, ...]) -> Schedule:
        """Return the schedule of a run of `steps`. Flow matching with dynamic shifting also reads the latent's size.

        cells: the latent's shape without channels, (h, w) or (F, h, w).
        """
        ...

    def step(
        self, latents: Tensor, outputs: Tensor, positions: Sequence[Position], noise: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Run one step for B rows.

        latents, outputs, noise: (B, …) float32. `noise` is read for positions that renew noise; None when no position
        does. Returns the latents one step later and the clean latents that the model predicts, both (B, …).

        Fresh noise (NIRVANA §9): all samplers write the next latent as a'·x̂0 + b'·ε̂. a', b' are the signal and noise
        scale after the step; x̂0, ε̂ are the model's own prediction. Renewing a share f makes it
            a'·x̂0 + b'·(√(1−f²)·ε̂ + f·ε_new),
        which keeps the noise level for every f in [0, 1]. This is DDIM's eq. 12 with σ = f·b', a family of steps with
        equal marginals, and at f = 1 flow matching's stochastic step. A reused state gets the request's noise by one
        such step as its first: this needs no extra forward, and f = 0 is the plain step.
        """
        ...


def wide(values: Tensor, like: Tensor) -> Tensor:
    """Reshape (B,) to (B, 1, …), to multiply with `like`."""
    return values.to(like.device).view(-1, *[1] * (like.dim() - 1))


def columns(positions: Sequence[Position]) -> tuple[Tensor, Tensor, Tensor, Tensor, list[float]]:
    """Return per row the signal and noise scale before and after the step, and the share of noise that it renews."""
    before = torch.stack([p.schedule.level[p.done] for p in positions])
    after = torch.stack([p.schedule.left[p.done] for p in positions])
    return before[:, 0], before[:, 1], after[:, 0], after[:, 1], [p.renewed for p in positions]


def renew(epsilon: Tensor, shares: list[float], noise: Tensor | None) -> Tensor:
    """Compute √(1−f²)·ε̂ + f·ε_new per row; without noise or with f = 0 in all rows, ε̂ is returned unchanged."""
    if noise is None or not any(shares):
        return epsilon
    keep = wide(torch.tensor([(1 - share**2) ** 0.5 for share in shares]), epsilon)
    return keep * epsilon + wide(torch.tensor(shares), epsilon) * noise
