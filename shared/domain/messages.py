"""The messages on the bus: commands in the imperative, events in the past tense. None holds an image or a latent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from shared.domain.json_values import Stored
from shared.domain.types import Job, Modality, from_json, to_json

# ---- commands: one worker receives each, from a lane ----


@dataclass(frozen=True, slots=True)
class GenerateImage(Stored):
    """Generate the image of this job, whose request and plan are in the catalog.

    `state_key` and `state_sha256` name the state that the plan starts from. A worker may begin to read that blob while
    it claims the job; the claimed row says whether the blob is needed.
    """

    job_id: str
    state_key: str = ""
    state_sha256: str = ""
    previews: bool = False
    """The stream that sent the job asked for previews. A stream that joins later publishes PreviewsRequested."""
    frames: int = 1
    """Frames of the clip, which count as rows of a worker; 1: an image."""
    only: bool = False
    """The task is for this job alone, which a worker has claimed before. Otherwise a worker may exchange it for the
    task of a more urgent job of the lane (docs/delivery.md, Order across a lane)."""

    @classmethod
    def of(cls, job: Job, *, previews: bool = False) -> GenerateImage:
        """Return the task of a job as its row says."""
        plan = job.plan
        return cls(job.id, plan.state_key, plan.state_sha256, previews, job.request.frames, only=job.attempt > 0)


# ---- events: every subscriber receives each ----


@dataclass(frozen=True, slots=True)
class JobQueued(Stored):
    """A job was accepted, and its task was sent to a lane. The fields repeat the job's plan."""

    job_id: str
    lane: str
    model: str
    source: str
    start_step: int = 0
    predicted_hit: bool | None = None
    found: bool | None = None
    sampled: bool = False
    steps: int = 50
    """T of the run, of which `start_step` are saved."""
    modality: str = Modality.IMAGE
    only: str = ""
    """The one model that may run an image hit in `refine`; empty: several may."""


@dataclass(frozen=True, slots=True)
class JobCancelled(Stored):
    """The job was cancelled by a client, or dropped after its deadline or after too long a wait. Its worker stops
    the job between two steps."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Progress(Stored):
    """A worker has run `step` of `steps`. `preview` is a small PNG of the latent in base64, or empty."""

    job_id: str
    step: int
    steps: int
    preview: str = ""


@dataclass(frozen=True, slots=True)
class PreviewsRequested(Stored):
    """A stream asked for previews of this job. From then on its worker sends them with the progress."""

    job_id: str


@dataclass(frozen=True, slots=True)
class JobSucceeded(Stored):
    """A worker finished the job's image with `model` in `steps_run` steps.

    The gateway may begin to read the blob `picture_key` at once; the job's row confirms the key. A worker that answers
    a duplicate task leaves the optional fields empty.
    """

    job_id: str
    attempt: int
    worker: str = ""
    model: str = ""
    steps_run: int = 0
    picture_key: str = ""
    picture_sha256: str = ""


@dataclass(frozen=True, slots=True)
class JobFailed(Stored):
    """The job failed for good in this attempt, with this error."""

    job_id: str
    attempt: int
    error: str


@dataclass(frozen=True, slots=True)
class StateUsed(Stored):
    """A job used this state: it started from the latent, or, at step 0, from the entry's finished image."""

    entry_id: str
    step: int


@dataclass(frozen=True, slots=True)
class StateLost(Stored):
    """The blob of this state is missing or corrupt, so the entry has a hole that the catalog still names.

    Step 0 is the entry's finished image, step −1 its masks. `key` names the lost blob: a newer state of the same step
    has another key.
    """

    entry_id: str
    step: int
    key: str = ""


@dataclass(frozen=True, slots=True)
class EntriesCached(Stored):
    """The cache maintainer added these entries to the cache."""

    entry_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EntriesEvicted(Stored):
    """The entries `entry_ids` left the index. The entries `holes` stay: they lost some of their states, or got or lost
    their masks."""

    entry_ids: tuple[str, ...]
    holes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DataErased(Stored):
    """These jobs and their entries were erased. Every process drops what its memory may hold of them."""

    job_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkerReported(Stored):
    """A worker's report of itself: at its start, after a change, and every `report_s` seconds."""

    worker: str
    kind: str
    """The worker's device. Workers of one kind are equally fast."""
    model: str
    """The model whose lanes the worker takes jobs from."""
    rows: int
    """Images that the worker has in hand; clips do not count."""
    max_rows: int
    step_s: tuple[tuple[str, int, float], ...] = ()
    """(model, rows, seconds of one step): measured at the start, then while the worker runs."""
    cannot: tuple[str, ...] = ()
    """Served models that the worker failed to load."""
    leaving: bool = False
    """The worker is stopping; this is its last report."""
    clips: int = 0
    """Clips among the requests that the worker runs now."""
    serves: tuple[str, ...] = ()
    """Models of the worker's settings; empty: unknown, from an older worker."""
    pixels: tuple[tuple[str, int], ...] = ()
    """(model, most pixels × frames of its requests in one step): what the worker's memory holds, where it is known."""


MISSED_REPORTS = 3
"""Number of consecutive missed reports after which a worker, or the monitor, counts as gone."""


def silence_s(report_s: float, missed: int = MISSED_REPORTS) -> float:
    """Return the seconds of silence of a process that reports every `report_s` and missed `missed` reports."""
    return missed * report_s


@dataclass(frozen=True, slots=True)
class WorkersAssigned(Stored):
    """The global monitor assigned models to workers. A worker that is not named keeps its model."""

    assignments: tuple[tuple[str, str], ...]
    """(worker, model)."""
    mode: str = "quality"
    """`quality` or `throughput`: in `throughput`, the large model leaves hits to small models (MoDM §5.3)."""


@dataclass(frozen=True, slots=True)
class VideoSegmented(Stored):
    """The masks of a finished clip, or image, are stored under `mask_key` (shared/domain/masks.py)."""

    job_id: str
    mask_key: str
    sha256: str = ""
    bytes: int = 0


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
    | DataErased
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
        DataErased,
        WorkerReported,
        WorkersAssigned,
        VideoSegmented,
    )
}


def encode(message: Message) -> tuple[str, bytes]:
    """Return the message as (kind, JSON body)."""
    return type(message).__name__, to_json(message)


def decode(kind: str, body: bytes) -> Message:
    """Return the message; KeyError for an unknown kind, pydantic.ValidationError for a malformed body."""
    return from_json(KINDS[kind], body)


def lane_of(model: str) -> str:
    """Return the lane of jobs that only `model` may run (docs/architecture.md, Nouns)."""
    return f"generate.{model}"


def refine_lane(modality: Modality = Modality.IMAGE) -> str:
    """Return the lane of image hits that name no model; any assigned model may take them."""
    return "generate.refine" if modality is Modality.IMAGE else f"generate.refine.{modality}"
