"""The five nouns of Afterimage as frozen values: Request, Plan, Job, Entry, State (docs: The five nouns).

Longer than 300 lines: the nouns refer to each other, and more than 200 files import them from here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from shared.domain.json_values import Stored
from shared.domain.json_values import from_json as from_json
from shared.domain.json_values import to_json as to_json

Vector = npt.NDArray[np.float32]
"""A unit-length embedding, shape (dim,), float32."""


class Modality(StrEnum):
    IMAGE = "image"
    VIDEO = "video"


class CacheMode(StrEnum):
    """What a request may do with the cache."""

    AUTO = "auto"  # read and write
    READ = "read"
    WRITE = "write"
    OFF = "off"

    @property
    def reads(self) -> bool:
        return self in (CacheMode.AUTO, CacheMode.READ)

    @property
    def writes(self) -> bool:
        return self in (CacheMode.AUTO, CacheMode.WRITE)


class Scope(StrEnum):
    """Who may start from an entry; reuse never crosses it."""

    PRIVATE = "private"  # the same user of the same tenant
    TENANT = "tenant"
    PUBLIC = "public"


class PlanSource(StrEnum):
    """Where a picture starts."""

    NOISE = "noise"
    LATENT = "latent"
    IMAGE = "image"
    STITCHED = "stitched"
    EXACT = "exact"


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
class Size(Stored):
    """Pixels, width × height."""

    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


AUTO = "auto"
"""Any model that is served, as the plan sees fit."""


URGENT = 5
"""Priorities from here up are the first of a lane's two bands, as RabbitMQ 4's quorum queues have them."""


@dataclass(frozen=True, slots=True)
class Request(Stored):
    """What a client asked for, validated and with every default filled in (a Job keeps it unchanged)."""

    prompt: str
    size: Size
    steps: int
    guidance: float
    seed: int
    """Always set: drawn at random by the gateway when the client gave none."""
    seed_given: bool = True
    """False when the gateway drew the seed: such a request is never an exact repeat."""
    negative_prompt: str = ""
    modality: Modality = Modality.IMAGE
    frames: int = 1
    quality: str = AUTO
    """`auto`, `large`, `small` or a model id."""
    cache: CacheMode = CacheMode.AUTO
    scope: Scope = Scope.TENANT
    tenant: str = "default"
    user: str = ""
    priority: int = 0
    deadline_s: float | None = None
    """Relative to acceptance."""
    drop_if_late: bool = False
    savings: float = 0.5
    """The savings ↔ quality knob, 0 best quality … 1 most steps saved; .5 is the profiled table (NIRVANA §5.3.1)."""
    fresh_noise: float = 0.0
    """Share of a reused state's noise replaced by the request's own, 0–1 (NIRVANA §9, image diversity)."""

    @property
    def names_a_model(self) -> bool:
        """Whether only one model may draw it."""
        return self.quality not in ("", AUTO)


@dataclass(frozen=True, slots=True)
class ModelPlan(Stored):
    """What one model may do with a plan: `model` starts after `start_step` of its T steps."""

    model: str
    start_step: int
    guidance: float | None = None
    """What it runs with; None: the request's own, which is the right one for the model that was asked for."""
    steps: int | None = None
    """T of its own run, of a model that was not asked for (MoDM §6); None: the request's."""

    def run_steps(self, asked: int) -> int:
        """Return T of its run; `asked`: the request's own T."""
        return self.steps or asked


@dataclass(frozen=True, slots=True)
class Candidate(Stored):
    """One thing the planner looked at, kept so that every choice can be read later."""

    entry_id: str
    kind: str
    """latent | image | exact"""
    similarity: float
    allowed_step: Annotated[int, Field(alias="wished_step")]
    """K the table allows for this similarity (0: none)."""
    start_step: int
    """Largest K present and not above the wished one (0: a hole all the way down)."""
    prompt: str = ""
    chosen: bool = False
    reason: str = ""
    model: str = ""
    """Who drew it."""


@dataclass(frozen=True, slots=True)
class Plan(Stored):
    """Where to start, and why. A picture is a function of its request and its plan."""

    source: PlanSource
    model: str
    """The model that draws it; of an image hit that several may run: the first of `may_run` until one claims it."""
    start_step: int = 0
    """Steps already behind the picture when it starts: K of T."""
    entry_id: str = ""
    state_key: str = ""
    """Blob key of the state the picture starts from (empty from noise); of the picture itself for an exact repeat."""
    state_sha256: str = ""
    state_codec: str = ""
    similarity: float = 0.0
    capture_steps: tuple[int, ...] = ()
    """Steps of T after which the latent is kept for the cache."""
    may_run: tuple[ModelPlan, ...] = ()
    """Who may draw it and from which step, cheapest first; only an image hit has more than one."""
    fresh_noise: float = 0.0
    noise_seed: int = 0
    """Seed of the noise injected into a reused state."""
    weights_hash: str = ""
    """Weights of `model` when the plan was made; another hash at claim makes it a plan from noise."""
    candidates: tuple[Candidate, ...] = ()
    reason: str = ""
    """One sentence for people."""
    degraded: tuple[str, ...] = ()
    """Every service or blob that was away, late or wrong, as `service: what happened`."""
    predicted_hit: bool | None = None
    """The match predictor's verdict; None when it was not asked."""
    looked_up: bool = False
    """Whether the index was searched."""
    found: bool | None = None
    """Whether the search found a similar enough entry; None when it was not searched."""
    sampled: bool = False
    """Looked up although a miss was predicted (so that recall is known), or drawn from noise although a hit (ε)."""
    miss_model: str = ""
    """Who draws it from noise when what it starts from is gone; empty: `model`."""
    fallback: Plan | None = None
    """Of a latent hit that names no model: the image hit that it becomes where its model is not served."""

    @property
    def is_miss(self) -> bool:
        """Whether it runs all T steps, from noise."""
        return self.source is PlanSource.NOISE or self.start_step == 0

    def run_steps(self, asked: int) -> int:
        """T of the run by `model`, of which `start_step` are skipped; `asked`: the request's own T."""
        own = self._own()
        return asked if own is None else own.run_steps(asked)

    def run_guidance(self, asked: float) -> float:
        """Return the guidance of the run by `model`, which may need another than the request's (`asked`)."""
        own = self._own()
        return asked if own is None or own.guidance is None else own.guidance

    def _own(self) -> ModelPlan | None:
        return next((one for one in self.may_run if one.model == self.model), None)


@dataclass(frozen=True, slots=True)
class CompatKey(Stored):
    """What must be equal for a latent of one request to start another (design §2, Compatibility)."""

    weights_hash: str
    sampler: str
    """Name and configuration hash of the sampler."""
    dtype: str
    size: Size
    steps: int
    """The schedule. Not part of the filter key: a state after K of T steps also fits K' of T' where K/T = K'/T'
    gives exactly the same noise level, which the planner checks."""

    def __str__(self) -> str:
        """The key that index searches filter by: everything but the schedule's length."""
        return f"{self.weights_hash}/{self.sampler}/{self.dtype}/{self.size}"


PICTURE_STEP = 0
"""What stands for the finished picture where states are counted by their step: no latent is kept after no step."""
PICTURE_CODEC = "png"


@dataclass(frozen=True, slots=True)
class Captured(Stored):
    """A latent kept during a run: `step` steps of T are behind it."""

    step: int
    key: str
    bytes: int
    codec: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Timings(Stored):
    """Seconds spent, by stage; each is monotonic-clock time inside one service."""

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
    """What a job produced; of a cancelled one that had begun, what it had cost: no picture then."""

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
    """What the captured states fit; None where nothing was captured."""


@dataclass(frozen=True, slots=True)
class Job:
    """A Request's life."""

    id: str
    request: Request
    plan: Plan
    state: JobState
    attempt: int = 0
    failures: int = 0
    """Errors raised by the task itself; `attempt` is a fencing token that only grows, so it cannot count them."""
    crashes: int = 0
    """Worker crashes during which a worker held the job, and …"""
    crashes_alone: int = 0
    """… those of them at which the worker held no other job."""
    exposed_from: float = 0.0
    """When a worker first claimed the job; 0 before that."""
    exposed_s: float = 0.0
    """Seconds that workers have held the job running, and …"""
    alone_s: float = 0.0
    """… those of them without another job."""
    worker: str = ""
    lane: str = ""
    error: str = ""
    result: Result | None = None
    created_at: float = 0.0
    """Unix seconds by the catalog's clock."""
    updated_at: float = 0.0
    lease_until: float = 0.0
    vector: bytes = b""
    """The prompt's embedding (float32, little endian), so that a cache entry can be made from the row alone."""
    encoder_hash: str = ""
    exact_key: str = ""
    checkpoint_key: str = ""
    checkpoint_step: int = 0
    warnings: tuple[str, ...] = ()
    confirmed: bool = False
    """Whether the row says that the broker has its task; written a moment after that, and only by the catalog."""
    buried: bool = False
    """Whether the row of a failed job says that its task lies among the dead letters."""

    @property
    def promised(self) -> bool:
        """Whether a client may be told that it is accepted (design §8, Accept): the row says that its task was sent."""
        return self.confirmed or self.state is not JobState.QUEUED


@dataclass(frozen=True, slots=True)
class State:
    """One reusable piece of an Entry: the latent after `step` steps, or at step 0 its finished picture."""

    entry_id: str
    step: int
    key: str
    bytes: int
    codec: str
    sha256: str
    uses: int = 0
    created_at: float = 0.0
    used_at: float = 0.0

    @property
    def is_picture(self) -> bool:
        """Its blob is the picture of the entry's job, which the job still names as its result."""
        return self.step == PICTURE_STEP

    def used(self, at: float) -> State:
        """The same, once something has started from it once more."""
        latest = at if at > self.used_at else self.used_at
        return State(
            self.entry_id, self.step, self.key, self.bytes, self.codec, self.sha256, self.uses + 1, self.created_at,
            latest,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """One finished generation in the cache."""

    id: str
    job_id: str
    prompt: str
    tenant: str
    user: str
    scope: Scope
    model: str
    compat: CompatKey
    exact_key: str
    picture_key: str
    picture_sha256: str
    encoder_hash: str
    created_at: float
    states: tuple[State, ...] = ()

    @property
    def latents(self) -> tuple[State, ...]:
        """Its states that only the same weights can go on from."""
        return tuple(state for state in self.states if not state.is_picture)

    @property
    def picture(self) -> State | None:
        """Its picture as a state that any model can start from; None: not kept, or evicted."""
        return next((state for state in self.states if state.is_picture), None)


@dataclass(frozen=True, slots=True)
class Hit:
    """One answer of an index search."""

    entry_id: str
    similarity: float
    """Cosine, re-scored in float32."""


@dataclass(frozen=True, slots=True)
class IndexFilter:
    """Which entries a search may return: `compat` as str(CompatKey), `owners` the scope keys visible to the caller."""

    compat: str = ""
    owners: tuple[str, ...] = ()
    encoder_hash: str = ""


@dataclass(frozen=True, slots=True)
class IndexItem:
    """What the index stores for an entry: its named vectors and what searches filter by."""

    entry_id: str
    vectors: dict[str, Vector] = field(default_factory=dict)
    compat: str = ""
    owner: str = ""
    encoder_hash: str = ""


def vector_bytes(vector: Vector) -> bytes:
    """float32, little endian: how embeddings travel in messages and rows."""
    return np.ascontiguousarray(vector, dtype="<f4").tobytes()


def vector_from(data: bytes) -> Vector:
    """The embedding that `vector_bytes` wrote, shape (dim,)."""
    return np.frombuffer(data, dtype="<f4").astype(np.float32)


def owner_key(scope: Scope, tenant: str, user: str) -> str:
    """The scope key an entry is stored under; a caller sees `visible_owners`."""
    match scope:
        case Scope.PRIVATE:
            return f"private:{tenant}:{user}"
        case Scope.TENANT:
            return f"tenant:{tenant}"
        case Scope.PUBLIC:
            return "public"


def visible_owners(tenant: str, user: str) -> tuple[str, ...]:
    """Every scope key this caller may start from."""
    return tuple(owner_key(scope, tenant, user) for scope in Scope)
