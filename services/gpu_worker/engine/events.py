"""What one engine step tells the rest of the worker: frozen values, safe to hand to another thread."""

from __future__ import annotations

from dataclasses import dataclass

from services.gpu_worker.engine.rows import Latent, Pixels


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """The row rides from now on, with `step` steps behind it."""

    id: str
    step: int
    at: float
    """On the engine's monotonic clock."""
    encode_s: float
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Advanced:
    """So many steps are behind the row; told now and then."""

    id: str
    step: int
    steps: int
    preview: Pixels | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LatentCaptured:
    """The latent after a step the plan asked to keep."""

    id: str
    step: int
    latent: Latent


@dataclass(frozen=True, slots=True, eq=False)
class Checkpointed:
    """Everything the rest of the run depends on."""

    id: str
    step: int
    latent: Latent
    generator_state: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """The picture is there."""

    id: str
    latent: Latent
    pixels: Pixels
    steps_run: int
    denoise_s: float
    """From joining to the last step, shared with whoever rode along."""
    decode_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Left:
    """The row is gone without a picture: an AfterimageError says why, anything else is the task's own failure."""

    id: str
    error: Exception
    steps_run: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class BatchRan:
    """One forward of one model's rows."""

    model: str
    rows: int
    seconds: float


Event = Joined | Advanced | LatentCaptured | Checkpointed | Finished | Left | BatchRan
