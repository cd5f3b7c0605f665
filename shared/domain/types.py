"""The five nouns of Afterimage as frozen values: Request, Plan, Job, Entry, State (docs/architecture.md, Nouns).

Job is defined here; more than 200 files import the others from here too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from shared.domain.cached import (
    BACKGROUND,
    NEEDS,
    OBJECT,
    PICTURE_CODEC,
    PICTURE_STEP,
    CompatKey,
    Entry,
    Hit,
    IndexFilter,
    IndexItem,
    State,
    Vector,
    owner_key,
    text_owner,
    vector_bytes,
    vector_from,
    visible_owners,
)
from shared.domain.json_values import Stored, from_json, to_json
from shared.domain.masks import Mask
from shared.domain.plans import Candidate, Lead, ModelPlan, Plan, PlanSource, Relation, Soonest, Source
from shared.domain.requests import AUTO, URGENT, CacheMode, Modality, Request, Scope, Size, Upload, Variation

__all__ = [
    "AUTO",
    "BACKGROUND",
    "NEEDS",
    "OBJECT",
    "PICTURE_CODEC",
    "PICTURE_STEP",
    "URGENT",
    "CacheMode",
    "Candidate",
    "Captured",
    "CompatKey",
    "Entry",
    "Hit",
    "IndexFilter",
    "IndexItem",
    "Job",
    "JobState",
    "Lead",
    "Modality",
    "ModelPlan",
    "Plan",
    "PlanSource",
    "Relation",
    "Request",
    "Result",
    "Scope",
    "Size",
    "Soonest",
    "Source",
    "State",
    "Timings",
    "Upload",
    "Variation",
    "Vector",
    "from_json",
    "owner_key",
    "text_owner",
    "to_json",
    "vector_bytes",
    "vector_from",
    "visible_owners",
]


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


@dataclass(frozen=True, slots=True)
class Captured(Stored):
    """A latent that a run kept after `step` of T steps."""

    step: int
    key: str
    bytes: int
    codec: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Timings(Stored):
    """Seconds by stage, each measured with the monotonic clock of one service."""

    extract_s: float = 0.0
    embed_s: float = 0.0
    predict_s: float = 0.0
    plan_s: float = 0.0
    accept_s: float = 0.0
    queue_s: float = 0.0
    fetch_s: float = 0.0
    encode_s: float = 0.0
    denoise_s: float = 0.0
    decode_s: float = 0.0
    store_s: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Result(Stored):
    """The result of a job: its image, steps and seconds. For a job that was cancelled while it ran: no image."""

    picture_key: str
    picture_sha256: str
    picture_bytes: int
    model: str
    weights_hash: str
    steps_run: int
    timings: Timings = Timings()
    warnings: tuple[str, ...] = ()
    captured: tuple[Captured, ...] = ()
    compat: CompatKey | None = None
    """Compatibility of the captured states; None when no state was captured."""
    skipped: Annotated[float, Field(exclude_if=lambda share: not share)] = 0.0
    """Share of the work of `steps_run` that took earlier outputs of blocks instead (`step_reuse`, `regions`)."""


@dataclass(frozen=True, slots=True)
class Job:
    """A request with its plan, its state and its result."""

    id: str
    request: Request
    plan: Plan
    state: JobState
    attempt: int = 0
    failures: int = 0
    """Errors of the job itself. `attempt` is a fencing token that grows with every claim, so it cannot count them."""
    crashes: int = 0
    """Crashes of workers while they held the job."""
    crashes_alone: int = 0
    """Those `crashes` at which the worker held no other job."""
    exposed_from: float = 0.0
    """Time of the first claim by a worker, in Unix seconds; 0 before that."""
    exposed_s: float = 0.0
    """Seconds for which workers have run the job."""
    alone_s: float = 0.0
    """Those of the `exposed_s` seconds in which the worker held no other job."""
    worker: str = ""
    lane: str = ""
    error: str = ""
    result: Result | None = None
    created_at: float = 0.0
    """Unix seconds by the catalog's clock."""
    updated_at: float = 0.0
    lease_until: float = 0.0
    vector: bytes = b""
    """The prompt's embedding (float32, little endian), from which a cache entry can be made without the encoder."""
    object_vector: bytes = b""
    """Embedding of the prompt's object phrase, as `vector`; empty: not extracted."""
    background_vector: bytes = b""
    """Embedding of its background phrase."""
    encoder_hash: str = ""
    exact_key: str = ""
    checkpoint_key: str = ""
    checkpoint_step: int = 0
    warnings: tuple[str, ...] = ()
    confirmed: bool = False
    """The row notes that the broker has the job's task. Only the catalog writes this note, shortly after the send."""
    buried: bool = False
    """The row of a failed job notes that its task is a dead letter."""
    standalone_s: float = 0.0
    """Predicted seconds of the plan on a worker of its own; 0: unknown."""
    batched_s: float = 0.0
    """Predicted seconds of the plan in a full batch; 0: unknown."""
    predicted_s: float = 0.0
    """Seconds from acceptance to the finish that the gateway predicted then; 0: no prediction."""
    mask: Mask | None = None
    """Masks of the result, until the job's entry names them; None: not segmented yet, or the entry has them."""

    @property
    def vectors(self) -> dict[str, bytes]:
        """The prompt's embeddings by the name under which an index finds them (FlexCache §5); empty: not embedded."""
        named = {"whole": self.vector, OBJECT: self.object_vector, BACKGROUND: self.background_vector}
        return {name: vector for name, vector in named.items() if vector} if self.vector else {}

    @property
    def pixel_steps(self) -> int:
        """Frames × pixels × steps that the plan runs, at least one step. Each further frame of the clip that it goes on
        from counts one step, because it is decoded and stored again."""
        request, plan = self.request, self.plan
        steps = max(plan.run_steps(request.steps) - plan.start_step, 1)
        frames = request.frames * steps + self.frames - request.frames
        return frames * request.size.width * request.size.height

    @property
    def deadline_met(self) -> bool | None:
        """Whether the image came before its deadline, by the catalog's clock. None: no deadline, not ended yet, or
        cancelled before the deadline."""
        limit = self.request.deadline_s
        if limit is None or not self.state.final:
            return None
        in_time = self.updated_at <= self.created_at + limit
        if self.state is JobState.CANCELLED and in_time:
            return None
        return self.state is JobState.SUCCEEDED and in_time

    @property
    def frames(self) -> int:
        """Frames of the result: those of the lead, and those that the run generates."""
        lead = self.plan.lead
        return self.request.frames if lead is None else lead.whole(self.request.frames)

    @property
    def promised(self) -> bool:
        """A client may get the acceptance: the task was sent (docs/architecture.md, Delivery rules)."""
        return self.confirmed or self.state is not JobState.QUEUED
