"""What travels on the bus: commands in the imperative, facts in the past tense; never a picture or a latent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from shared.domain.json_values import Stored
from shared.domain.types import Modality, from_json, to_json

# ---- commands (one lane, one worker) ----


@dataclass(frozen=True, slots=True)
class GenerateImage(Stored):
    """Draw the picture of this job; everything else is on its row.

    `state_key` and `state_sha256` are what its plan starts from, so that a worker may begin to read that while it
    claims the job; the claimed row says whether it is needed.
    """

    job_id: str
    state_key: str = ""
    state_sha256: str = ""
    previews: bool = False
    """Whether the stream that sent it asked for previews; one that comes later publishes PreviewsRequested."""


# ---- facts (every subscriber) ----


@dataclass(frozen=True, slots=True)
class JobQueued(Stored):
    job_id: str
    lane: str
    model: str
    source: str
    start_step: int = 0
    predicted_hit: bool | None = None
    found: bool | None = None
    sampled: bool = False
    steps: int = 50
    """T: `start_step` of it are saved."""
    modality: str = Modality.IMAGE
    only: str = ""
    """Of an image hit in `refine`: the one model that may draw it; empty: several may."""


@dataclass(frozen=True, slots=True)
class JobCancelled(Stored):
    job_id: str


@dataclass(frozen=True, slots=True)
class Progress(Stored):
    """`step` of `steps` are behind the picture; `preview` is a small base64 PNG made from the latent, or empty."""

    job_id: str
    step: int
    steps: int
    preview: str = ""


@dataclass(frozen=True, slots=True)
class PreviewsRequested(Stored):
    """A stream asked for previews of this job: its worker sends them with the progress from then on."""

    job_id: str


@dataclass(frozen=True, slots=True)
class JobSucceeded(Stored):
    """Who drew it, with what and in how many steps, and where the picture is, so that who waits may begin to read it
    (which one it is, the row says); an answer to a duplicate leaves that out."""

    job_id: str
    attempt: int
    worker: str = ""
    model: str = ""
    steps_run: int = 0
    picture_key: str = ""
    picture_sha256: str = ""


@dataclass(frozen=True, slots=True)
class JobFailed(Stored):
    job_id: str
    attempt: int
    error: str


@dataclass(frozen=True, slots=True)
class StateUsed(Stored):
    """A worker started a picture from this state (step 0: the entry's whole picture was returned)."""

    entry_id: str
    step: int


@dataclass(frozen=True, slots=True)
class StateLost(Stored):
    """The blob of this state is missing or corrupt (step 0: the entry's whole picture): a hole the catalog still names.

    `key` is that blob, so that a newer state under the same step is not taken for it.
    """

    entry_id: str
    step: int
    key: str = ""


@dataclass(frozen=True, slots=True)
class EntriesCached(Stored):
    entry_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EntriesEvicted(Stored):
    """`entry_ids` left the index; `holes` lost some of their states and stay."""

    entry_ids: tuple[str, ...]
    holes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerReported(Stored):
    """What a worker says of itself at its start, when something changed, and every few seconds."""

    worker: str
    kind: str
    """The device it draws on: workers of one kind are equally fast."""
    model: str
    """The model whose lanes it takes from."""
    rows: int
    """Requests in its hands."""
    max_rows: int
    step_s: tuple[tuple[str, int, float], ...] = ()
    """(model, rows, seconds of one step): measured at the start, then as it draws."""
    cannot: tuple[str, ...] = ()
    """Served models that it failed to load."""
    leaving: bool = False
    """It drains for good: its last word."""


MISSED_REPORTS = 3
"""Reports in a row that a worker, or the monitor, may miss before it counts as gone."""


def silence_s(report_s: float, missed: int = MISSED_REPORTS) -> float:
    """Return how long a process that reports every `report_s` is silent when it has missed so many reports."""
    return missed * report_s


@dataclass(frozen=True, slots=True)
class WorkersAssigned(Stored):
    """Who runs which model from now on; a worker that is not named goes on as it was."""

    assignments: tuple[tuple[str, str], ...]
    """(worker, model)."""
    mode: str = "quality"
    """`quality` or `throughput` (MoDM §5.3): whether a worker with the large model refines too."""


@dataclass(frozen=True, slots=True)
class VideoSegmented(Stored):
    job_id: str
    mask_key: str


Message: TypeAlias = (
    GenerateImage
    | JobQueued
    | JobCancelled
    | Progress
    | PreviewsRequested
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
        PreviewsRequested,
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


def refine_lane(modality: Modality = Modality.IMAGE) -> str:
    """The lane of image hits that name no model: any assigned model may take them (docs: Lanes)."""
    return "generate.refine" if modality is Modality.IMAGE else f"generate.refine.{modality}"
