"""Events that one engine step reports to the rest of the worker: frozen values, safe to pass to another thread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from services.gpu_worker.engine.noises import Noise
from services.gpu_worker.engine.rows import Latent, Pixels


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """The row joined the batch, with `step` steps already done."""

    id: str
    step: int
    at: float
    """Seconds by the engine's monotonic clock."""
    encode_s: float
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Advanced:
    """The row has done `step` steps; reported at most once per `tell_every_s` seconds."""

    id: str
    step: int
    steps: int
    preview: Pixels | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LatentCaptured:
    """The latent after a step that the plan asks to capture."""

    id: str
    step: int
    latent: Latent
    noises: tuple[Noise, ...] = ()
    """Noises that the latent carries; empty: unknown."""


@dataclass(frozen=True, slots=True, eq=False)
class Checkpointed:
    """Everything that the rest of the run depends on."""

    id: str
    step: int
    latent: Latent
    generator_state: bytes
    noises: tuple[Noise, ...] = ()
    previous: Latent | None = None
    """History of a multistep sampler, see FromCheckpoint."""
    anew: npt.NDArray[np.bool_] | None = None
    """Cells that the run generates where it holds the others for now, (h, w), see Region."""


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """The image is finished."""

    id: str
    latent: Latent
    pixels: Pixels
    steps_run: int
    denoise_s: float
    """Seconds from joining to the last step, shared with the other rows of the batch."""
    decode_s: float
    skipped: float = 0.0
    """Share of the steps' blocks that were not computed, by patches (engine/reuse)."""


@dataclass(frozen=True, slots=True, eq=False)
class Left:
    """The row left without an image. `error` is an AfterimageError with the reason, or any other error of the task
    itself."""

    id: str
    error: Exception
    steps_run: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class BatchRan:
    """One forward pass of one model's rows."""

    model: str
    rows: int
    seconds: float


Event = Joined | Advanced | LatentCaptured | Checkpointed | Finished | Left | BatchRan
