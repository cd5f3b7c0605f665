"""What travels on the bus: commands in the imperative, facts in the past tense; never a picture or a latent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from shared.types import from_json, to_json

# ---- commands (one lane, one worker) ----


@dataclass(frozen=True, slots=True)
class GenerateImage:
    """Draw the picture of this job; everything else is on its row."""

    job_id: str


# ---- facts (every subscriber) ----


@dataclass(frozen=True, slots=True)
class JobQueued:
    job_id: str
    lane: str
    model: str
    source: str
    start_step: int = 0
    predicted_hit: bool | None = None
    found: bool | None = None
    sampled: bool = False


@dataclass(frozen=True, slots=True)
class JobCancelled:
    job_id: str


@dataclass(frozen=True, slots=True)
class Progress:
    """`step` of `steps` are behind the picture; `preview` is a small base64 PNG made from the latent, or empty."""

    job_id: str
    step: int
    steps: int
    preview: str = ""


@dataclass(frozen=True, slots=True)
class JobSucceeded:
    job_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class JobFailed:
    job_id: str
    attempt: int
    error: str


@dataclass(frozen=True, slots=True)
class StateUsed:
    """A worker started a picture from this state (step 0: the entry's whole picture was returned)."""

    entry_id: str
    step: int


@dataclass(frozen=True, slots=True)
class StateLost:
    """The blob of this state is missing or corrupt (step 0: the entry's whole picture): a hole the catalog still names.

    `key` is that blob, so that a newer state under the same step is not taken for it.
    """

    entry_id: str
    step: int
    key: str = ""


@dataclass(frozen=True, slots=True)
class EntriesCached:
    entry_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EntriesEvicted:
    """`entry_ids` left the index; `holes` lost some of their states and stay."""

    entry_ids: tuple[str, ...]
    holes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerReported:
    worker: str
    models: tuple[str, ...]
    rows: int
    max_rows: int
    step_s: float


@dataclass(frozen=True, slots=True)
class WorkersAssigned:
    """Model of each worker, as (worker, model) pairs."""

    assignments: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class VideoSegmented:
    job_id: str
    mask_key: str


Message: TypeAlias = (
    GenerateImage
    | JobQueued
    | JobCancelled
    | Progress
    | JobSucceeded
    | JobFailed
    | StateUsed
    | StateLost
    | EntriesCached
    | EntriesEvicted
    | WorkerReported
    | WorkersAssigned
    | VideoSegmented
)
KINDS: dict[str, type[Message]] = {
    kind.__name__: kind
    for kind in (
        GenerateImage,
        JobQueued,
        JobCancelled,
        Progress,
        JobSucceeded,
        JobFailed,
        StateUsed,
        StateLost,
        EntriesCached,
        EntriesEvicted,
        WorkerReported,
        WorkersAssigned,
        VideoSegmented,
    )
}


def encode(message: Message) -> tuple[str, bytes]:
    """(kind, JSON body)."""
    return type(message).__name__, to_json(message)


def decode(kind: str, body: bytes) -> Message:
    """The message again; KeyError for an unknown kind, pydantic.ValidationError for a malformed body."""
    return from_json(KINDS[kind], body)


def lane_of(model: str) -> str:
    """The lane of what only `model` may run (docs: Lanes)."""
    return f"generate.{model}"
