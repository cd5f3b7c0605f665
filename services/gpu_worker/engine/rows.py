"""Rows: one request inside the engine, with its own latent, schedule, guidance and random state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from services.gpu_worker.engine.samplers import Position, Schedule
from shared.domain.truncation import of_negative
from shared.domain.types import Size

Pixels = npt.NDArray[np.uint8]
"""A picture, (height, width, 3), RGB."""
Latent = npt.NDArray[np.float32]
"""A latent off the engine's thread and device, (channels, height, width)."""


@dataclass(frozen=True, eq=False)
class FromNoise:
    """All T steps, from noise that depends on the seed and the size only."""


@dataclass(frozen=True, eq=False)
class FromState:
    """The steps after K, from a latent some run (this request's own or another's) left at K (NIRVANA §4)."""

    latent: Latent
    step: int
    fresh_noise: float = 0.0
    """Share of the state's noise that the first step replaces by noise of `noise_seed` (Sampler.step)."""
    noise_seed: int = 0


@dataclass(frozen=True, eq=False)
class FromPicture:
    """The steps after K, from a picture brought to the noise level of K with the request's own noise (MoDM §4.3)."""

    pixels: Pixels
    step: int


@dataclass(frozen=True, eq=False)
class FromCheckpoint:
    """The steps after a crash: latent and generator as they were, so that the rest is what it would have been."""

    latent: Latent
    step: int
    generator_state: bytes


Start = FromNoise | FromState | FromPicture | FromCheckpoint


@dataclass(frozen=True, eq=False)
class Task:
    """What the engine is asked to draw; everything random in it comes from its seeds."""

    id: str
    model: str
    prompt: str
    size: Size
    steps: int
    guidance: float
    seed: int
    negative_prompt: str = ""
    start: Start = field(default_factory=FromNoise)
    capture_steps: tuple[int, ...] = ()
    """Steps of T after which the latent leaves the engine."""
    preview: bool = False
    checkpoint_every: int = 0
    """Steps between checkpoints for crash resume; 0: none."""
    checkpoint_gap_s: float = 0.0
    """And at least so long after the last, or after joining: fast steps are sooner drawn again than written."""
    priority: int = 0
    deadline_at: float | None = None
    """On the engine's monotonic clock."""
    drop_if_late: bool = False
    alone: bool = False
    """Rides with nobody: it was there when workers crashed (design §8, Attempts)."""
    arrived: int = 0
    """Order of arrival, set by the engine."""


@dataclass(frozen=True, eq=False)
class PromptEncoding:
    """What the denoiser is conditioned on."""

    hidden: Tensor
    """(tokens, width)."""
    pooled: Tensor | None = None
    """(width,), where the family has one."""
    mask: Tensor | None = None
    """(tokens,) 1 where a token is the prompt's, where the denoiser asks for it."""
    warning: str = ""
    """What the text encoder could not take in."""


@dataclass(eq=False)
class Row:
    """A task that rides in the batch."""

    task: Task
    schedule: Schedule
    latent: Tensor
    """(channels, height, width) float32 on the engine's device, after `done` steps."""
    done: int
    started: int
    """`done` when this attempt's row joined: nothing before it was run here."""
    encoding: PromptEncoding
    negative: PromptEncoding | None
    """None without guidance (guidance ≤ 1, or embedded in the denoiser): no unconditional half."""
    generator: torch.Generator
    renew: float = 0.0
    """Share of the noise that the next step replaces; back to 0 after it."""
    joined_at: float = 0.0
    told_at: float = 0.0
    saved_at: float = 0.0
    """When it joined, or left its last checkpoint."""

    @property
    def position(self) -> Position:
        return Position(self.schedule, self.done, self.renew)

    @property
    def left(self) -> int:
        return self.schedule.steps - self.done

    @property
    def generator_state(self) -> bytes:
        return self.generator.get_state().numpy().tobytes()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of the request's words goes unread."""
        said = [self.encoding.warning, of_negative(self.negative.warning) if self.negative is not None else ""]
        if self.task.negative_prompt and self.negative is None:
            said.append("negative_prompt: not read, because there is no unconditional half (guidance ≤ 1, or embedded)")
        return tuple(filter(None, said))


@dataclass(frozen=True, eq=False)
class Stepped:
    """What one step makes of a row."""

    latent: Tensor
    clean: Tensor
    """The picture's latent as the model sees it through the noise, for previews."""


def fresh_noise(rows: Sequence[Row]) -> Tensor | None:
    """(B, …) noise for the rows whose step renews some, zeros for the others; None when no row does."""
    if not any(row.position.renewed for row in rows):
        return None
    return torch.stack(
        [
            torch.randn(row.latent.shape, generator=row.generator).to(row.latent.device)
            if row.position.renewed
            else torch.zeros_like(row.latent)
            for row in rows
        ]
    )
