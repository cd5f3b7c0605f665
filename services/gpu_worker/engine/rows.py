"""Rows: one request inside the engine, with its own latent, schedule, guidance and random state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from services.gpu_worker.engine.held import Held, HeldCells, HeldRegion
from services.gpu_worker.engine.noises import Noise
from services.gpu_worker.engine.samplers import Position, Sampler, Schedule
from shared.domain.truncation import of_negative
from shared.domain.types import Size

if TYPE_CHECKING:  # engine/reuse reads rows
    from services.gpu_worker.engine.reuse.block_cache import PassCache

Pixels = npt.NDArray[np.uint8]
"""An image, (height, width, 3), RGB; a clip of more than one frame: (frames, height, width, 3)."""
NO_WINDOWS = (0, 0)
"""Window and stride of a latent whose noise does not repeat."""
Latent = npt.NDArray[np.float32]
"""A latent off the engine's thread and device: (channels, height, width), or (channels, frames, height, width) of
families that generate clips."""


@dataclass(frozen=True, eq=False)
class FromNoise:
    """Run all T steps, from noise that depends only on the seed and the size."""


@dataclass(frozen=True, eq=False)
class Region:
    """The image whose latent starts the run. Cells that do not change keep its trajectory (engine/held.py)."""

    pixels: Pixels
    """(height, width, 3)."""
    until: int
    """Last step after which these cells are replaced."""


@dataclass(frozen=True, eq=False)
class FromState:
    """Run the steps after K, from the latent that this or another request's run had at K (NIRVANA §4)."""

    latent: Latent
    step: int
    fresh_noise: float = 0.0
    """Share of the state's noise that the first step replaces by noise of `noise_seed` (Sampler.step)."""
    noise_seed: int = 0
    noises: tuple[Noise, ...] = ()
    """Noises that the state carries; empty: unknown."""
    region: Region | None = None


@dataclass(frozen=True, eq=False)
class FromPicture:
    """Run the steps after K, from an image brought to the noise level of K with the request's own noise (MoDM §4.3).

    A clip starts from a clip of equal length, or from an image, which then stands for every frame."""

    pixels: Pixels
    step: int


@dataclass(frozen=True, eq=False)
class FromCheckpoint:
    """Resume after a crash: latent and generator are restored, so that the remaining steps equal those of the lost
    run."""

    latent: Latent
    step: int
    generator_state: bytes
    noises: tuple[Noise, ...] = ()
    """Noises that the latent carries; empty: unknown."""
    previous: Latent | None = None
    """History of a multistep sampler: the clean latent that the model predicted in the step before."""
    anew: npt.NDArray[np.bool_] | None = None
    """Cells that the lost run generated where it held the others, (h, w); None: it held none."""
    region: Region | None = None


@dataclass(frozen=True, eq=False)
class Kept:
    """An image of which the run keeps all cells but some (inpainting)."""

    pixels: Pixels
    """(height, width, 3)."""
    anew: npt.NDArray[np.bool_]
    """Pixels to generate anew, (height, width)."""


Start = FromNoise | FromState | FromPicture | FromCheckpoint


@dataclass(frozen=True, eq=False)
class Task:
    """The engine's input for one image or clip; all its randomness comes from its seeds."""

    id: str
    model: str
    prompt: str
    size: Size
    steps: int
    guidance: float
    seed: int
    frames: int = 1
    """Frames of the clip; 1: an image."""
    negative_prompt: str = ""
    text_owner: str = ""
    """Scope key of the callers for whom the prompts' encodings may be kept (shared.domain.cached)."""
    prompted_from: int = 0
    """Steps of T before which the run does not see its prompt."""
    start: Start = field(default_factory=FromNoise)
    held: Pixels | None = None
    """The first k frames of the clip, (k, height, width, 3), which the run holds (engine/held.py); k below `frames`."""
    kept: Kept | None = None
    """Image whose other cells the run holds (engine/held.py); of images alone."""
    capture_steps: tuple[int, ...] = ()
    """Steps of T after which the latent is reported as LatentCaptured."""
    sampler: str = ""
    """Name of the sampler, see engine/samplers; empty: the model card's."""
    preview: bool = False
    checkpoint_every: int = 0
    """Steps between checkpoints for crash resume; 0: none."""
    checkpoint_gap_s: float = 0.0
    """Least seconds since the last checkpoint, or since joining: repeating fast steps costs less than writing
    checkpoints."""
    priority: int = 0
    deadline_at: float | None = None
    """Seconds by the engine's monotonic clock."""
    drop_if_late: bool = False
    alone: bool = False
    """True if the task must run without other rows: it was present when workers crashed (docs/architecture.md, Crash
    accounting)."""
    arrived: int = 0
    """Order of arrival, set by the engine."""

    @property
    def pixels(self) -> int:
        """Return the pixels of all frames."""
        return self.frames * self.size.width * self.size.height


@dataclass(frozen=True, eq=False)
class PromptEncoding:
    """The denoiser's conditioning from one prompt."""

    hidden: Tensor
    """(tokens, width)."""
    pooled: Tensor | None = None
    """(width,), where the family has one."""
    mask: Tensor | None = None
    """(tokens,), 1 for the prompt's own tokens; where the denoiser takes a mask."""
    warning: str = ""
    """A client warning about the part of the prompt that the text encoder did not read."""


@dataclass(eq=False)
class Row:
    """A task that is in the batch."""

    task: Task
    sampler: Sampler
    schedule: Schedule
    latent: Tensor
    """The latent after `done` steps, float32 on the engine's device; see Latent for its shape."""
    done: int
    started: int
    """Value of `done` when this attempt's row joined; the steps before were not run here."""
    encoding: PromptEncoding
    negative: PromptEncoding | None
    """None without guidance (guidance ≤ 1, or embedded in the denoiser): no unconditional pass runs."""
    blank: PromptEncoding | None
    """Encoding of the empty prompt where the run's first steps do not see its prompt."""
    generator: torch.Generator
    renew: float = 0.0
    """Share of the noise that the next step replaces; 0 again after that step."""
    noises: tuple[Noise, ...] = ()
    """Noises that the latent carries; empty: unknown."""
    windows: tuple[int, int] = NO_WINDOWS
    """FreeNoise's window and stride in frames, see draw_noise."""
    previous: Tensor | None = None
    """A multistep sampler's history, of the latent's shape; None at the start of a run and in one-step samplers."""
    held: Held | HeldCells | None = None
    skipped: float = 0.0
    """Steps' worth of blocks that this attempt did not compute (engine/reuse)."""
    blocks: dict[int, PassCache] = field(default_factory=dict)
    """What the denoiser's blocks keep of the last step, by pass (engine/reuse): empty when the row joins."""
    joined_at: float = 0.0
    told_at: float = 0.0
    saved_at: float = 0.0
    """Time of the last checkpoint, or of joining."""

    @property
    def position(self) -> Position:
        return Position(self.schedule, self.done, self.renew, self.previous)

    @property
    def unprompted(self) -> bool:
        """True if the next step is unconditional: one pass, without prompt and negative prompt."""
        return self.blank is not None and self.done < self.task.prompted_from

    @property
    def region(self) -> HeldRegion | None:
        """Return the patches that keep another image's trajectory in the next step."""
        return self.held if isinstance(self.held, HeldRegion) else None

    @property
    def left(self) -> int:
        return self.schedule.steps - self.done

    @property
    def generator_state(self) -> bytes:
        return self.generator.get_state().numpy().tobytes()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the parts of the request's prompts that the model does not read."""
        said = [self.encoding.warning, of_negative(self.negative.warning) if self.negative is not None else ""]
        if self.task.negative_prompt and self.negative is None:
            said.append(
                "negative_prompt: ignored without an unconditional pass (guidance ≤ 1, or embedded in the model)"
            )
        return tuple(filter(None, said))


@dataclass(frozen=True, eq=False)
class Stepped:
    """A row's result of one step."""

    latent: Tensor
    clean: Tensor
    """The clean latent that the model predicts, for previews and for the history of multistep samplers."""


def generator_of(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed % 2**63)


def draw_noise(shape: Sequence[int], generator: torch.Generator, windows: tuple[int, int] = NO_WINDOWS) -> Tensor:
    """Draw noise of a latent's shape, as diffusers' pipelines do.

    windows: of a clip (C, F, h, w) with FreeNoise, the window and stride in frames. Each stretch of `stride` frames
    after the first window repeats the noise of the stretch one window before it, in shuffled order (FreeNoise, eq. 7).
    """
    noise = torch.randn(tuple(shape), generator=generator)
    window, stride = windows
    for start in range(window, shape[1], stride) if window else ():
        order = start - window + torch.randperm(stride, generator=generator)
        noise[:, start : start + stride] = noise[:, order[: shape[1] - start]]
    return noise


def first_noise(seed: int, shape: Sequence[int], windows: tuple[int, int] = NO_WINDOWS) -> Tensor:
    """Draw the first noise of a seed: the noise that starts a run, or the fresh noise of a reused state."""
    return draw_noise(shape, generator_of(seed), windows)


def carried_noises(task: Task, schedule: Schedule) -> tuple[Noise, ...]:
    """Return the noises that a task's states carry; empty where a noise is not the first of any seed."""
    if schedule.renewed.any():
        return ()
    match task.start:
        case FromCheckpoint(noises=known) | FromState(noises=known, fresh_noise=0):
            return known
        case FromState(noises=known, fresh_noise=fresh, noise_seed=seed):
            return (*known, seed % 2**63) if known or fresh == 1 else ()
        case _:
            return (task.seed % 2**63,)


def fresh_noise(rows: Sequence[Row]) -> Tensor | None:
    """Return (B, …) noise: fresh noise for rows whose step renews some, zeros for the others; None when no row does."""
    if not any(row.position.renewed for row in rows):
        return None
    return torch.stack(
        [
            draw_noise(row.latent.shape, row.generator, row.windows).to(row.latent.device)
            if row.position.renewed
            else torch.zeros_like(row.latent)
            for row in rows
        ]
    )
