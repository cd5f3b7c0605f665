"""The five nouns of Afterimage as frozen values: Request, Plan, Job, Entry, State (docs/architecture.md, Nouns).

The file is long because the nouns refer to each other and more than 200 files import them from here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field, computed_field, model_validator

from shared.domain.json_values import Stored
from shared.domain.json_values import from_json as from_json
from shared.domain.json_values import to_json as to_json

Vector = npt.NDArray[np.float32]
"""A unit-length embedding, shape (dim,), float32."""


class Modality(StrEnum):
    IMAGE = "image"
    VIDEO = "video"


class CacheMode(StrEnum):
    """Use of the cache by a request."""

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
    """Requests that may start from an entry. Reuse never crosses this boundary."""

    PRIVATE = "private"  # the same user of the same tenant
    TENANT = "tenant"
    PUBLIC = "public"


class Variation(StrEnum):
    """Entries that a request may start from, by what its user has seen (docs/adr/0012-relation.md)."""

    AUTO = "auto"  # a re-roll takes no root that the user has seen; edits may keep their composition
    SAME = "same"  # any entry that the bounds of quality allow
    NEW = "new"  # no entry whose root the user has seen


class Relation(StrEnum):
    """Relation of a request to an entry (services/retriever/relation.py)."""

    REROLL = "reroll"  # the same prompt of the same user, with another seed
    EDIT = "edit"  # near a prompt of the same user
    TOPIC = "topic"  # another prompt of the same user
    OTHER = "other"  # another user's, or an unknown user's


class PlanSource(StrEnum):
    """Start of an image."""

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
"""Quality of a request whose plan chooses among all served models."""


URGENT = 5
"""Least priority of the first of a lane's two bands, as in RabbitMQ 4's quorum queues."""


@dataclass(frozen=True, slots=True)
class Request(Stored):
    """A client's request, validated and with every default filled in. A Job keeps it unchanged."""

    prompt: str
    size: Size
    steps: int
    guidance: float
    seed: int
    """Always set: the gateway chooses a random seed when the client gives none."""
    seed_given: bool = True
    """False when the gateway chose the seed. Such a request is never an exact repeat."""
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
    """Seconds after acceptance."""
    drop_if_late: bool = False
    savings: float = 0.5
    """Balance of quality and savings: 0 best quality, 1 most steps saved, 0.5 the profiled K table (NIRVANA §5.3.1)."""
    fresh_noise: float = 0.0
    """Share of a reused state's noise that the request's own noise replaces, 0–1 (NIRVANA §9, image diversity)."""
    variation: Variation = Variation.AUTO
    steps_auto: Annotated[bool, Field(exclude_if=lambda auto: not auto)] = False
    """The plan chooses T among the model's `auto_steps`; `steps` is then the model's default T."""
    from_job: str = ""
    """Id of the job whose image the client chose as the start; empty: the plan chooses."""
    strength: float = 1.0
    """Share of the steps that run after the image of `from_job`, or after the last frame of `continue_job`."""
    continue_job: Annotated[str, Field(exclude_if=lambda job: not job)] = ""
    """Id of the job after whose last frame this clip goes on; empty: the clip is of its own."""

    @property
    def named_job(self) -> str:
        """The job that the client chose as the start, in either way; empty: the plan chooses."""
        return self.from_job or self.continue_job

    @property
    def named_in(self) -> str:
        """The field that names `named_job`."""
        return "from_job" if self.from_job else "continue_job"

    @property
    def names_a_model(self) -> bool:
        """Only one model may run the request."""
        return self.quality not in ("", AUTO)


@dataclass(frozen=True, slots=True)
class ModelPlan(Stored):
    """The run of a plan by one model: `model` starts after `start_step` of its T steps."""

    model: str
    start_step: int
    guidance: float | None = None
    """Guidance of the run; None: the request's own, which suits the requested model."""
    steps: int | None = None
    """T of the run where it is not the request's: T that the plan chose, or that of another model (MoDM §6)."""
    prompted_from: int = 0
    """Steps of T before which the run does not see its prompt."""

    def run_steps(self, asked: int) -> int:
        """Return T of the run. asked: the request's own T."""
        return self.steps or asked


@dataclass(frozen=True, slots=True)
class Candidate(Stored):
    """One entry that the planner considered, kept to explain the plan's choice."""

    entry_id: str
    kind: str
    """latent | image | exact"""
    similarity: float
    allowed_step: Annotated[int, Field(alias="wished_step")]
    """K that the K table allows for this similarity; 0: none."""
    start_step: int
    """Largest K of the entry's states up to `allowed_step`; 0: the entry has no such state."""
    prompt: str = ""
    chosen: bool = False
    reason: str = ""
    model: str = ""
    """Model that generated the entry."""
    relation: str = ""
    """A Relation; empty where the plan was made without relations."""
    steps: int = 0
    """T of `allowed_step` and `start_step`; 0: the request's."""


@dataclass(frozen=True, slots=True)
class Source(Stored):
    """One cached state or stored image that a plan starts from."""

    entry_id: str
    key: str = ""
    """Blob key."""
    sha256: str = ""
    codec: str = ""


@dataclass(frozen=True, slots=True)
class Lead(Stored):
    """Finished frames with which a clip begins. The run holds the last of them and generates what follows
    (engine/held.py)."""

    job_id: str
    key: str
    """Blob key of the job's image or clip."""
    sha256: str
    frames: int
    """Frames of the job's result: all of them begin the clip."""
    held: int
    """Last frames of the result that the run holds as its first."""


@dataclass(frozen=True, slots=True)
class Plan(Stored):
    """The start of an image, and the reason. Request and plan together determine the image."""

    source: PlanSource
    model: str
    """Model that runs the plan. For an image hit that several models may run: the first of `may_run` until a claim."""
    start_step: int = 0
    """Steps that the run skips: K of T."""
    sources: tuple[Source, ...] = ()
    """States that the image starts from; for an exact repeat, the stored image; empty from noise."""
    similarity: float = 0.0
    capture_steps: tuple[int, ...] = ()
    """Steps of T after which the latent is kept for the cache."""
    may_run: tuple[ModelPlan, ...] = ()
    """Models that may run the plan, each with its start step, cheapest first. Only an image hit has several."""
    fresh_noise: float = 0.0
    noise_seed: int = 0
    """Seed of the noise that is added to a reused state."""
    weights_hash: str = ""
    """Hash of the weights of `model` at planning. With another hash at the claim, a latent hit becomes a miss."""
    candidates: tuple[Candidate, ...] = ()
    reason: str = ""
    """Reason for the choice, in sentences for people."""
    degraded: tuple[str, ...] = ()
    """Every service or blob that was missing, late or wrong, as `service: reason`."""
    predicted_hit: bool | None = None
    """Prediction of the match predictor; None without a prediction."""
    looked_up: bool = False
    """The index was searched."""
    found: bool | None = None
    """The search found an entry that is similar enough; None without a search."""
    sampled: bool = False
    """Sampled plan: a search despite a predicted miss, to measure recall, or noise despite a hit (`epsilon`)."""
    miss_model: str = ""
    """Model that runs the plan from noise when its start is lost; empty: `model`."""
    miss_steps: int = 0
    """T of that run; 0: the request's."""
    miss_prompted_from: int = 0
    """Steps of that run before which it does not see its prompt."""
    fallback: Plan | None = None
    """Image hit that replaces this latent hit when no worker runs its model. Only for requests that name no model."""
    relation: str = ""
    """Relation to the entry that the image starts from; from noise, the closest relation to any candidate."""
    root: str = ""
    """Root of that entry; empty from noise."""
    lead: Annotated[Lead | None, Field(exclude_if=lambda lead: lead is None)] = None
    """Finished frames with which the clip begins; None: all its frames are generated."""

    @property
    def first_source(self) -> Source:
        """The first source; an empty one from noise."""
        return self.sources[0] if self.sources else _NO_SOURCE

    @model_validator(mode="before")
    @classmethod
    def _read_one_source(cls, data: Any) -> Any:
        """Read the four fields of earlier versions, whose plans had one source. They are written again beside
        `sources`, so that a worker of such a version can run the plan. If that worker changed them, it kept `sources`
        as they were: the four fields count."""
        if isinstance(data, dict) and "state_key" in data:
            former = {name: data.get(older, "") for name, older in _OF_FIRST.items()}
            data = {name: value for name, value in data.items() if name not in _OF_FIRST.values()}
            match data.get("sources"):
                case [{**first}, *_] if all(first.get(name, "") == value for name, value in former.items()):
                    pass
                case _:
                    data["sources"] = [former] if any(former.values()) else []
        return data

    @computed_field  # type: ignore[prop-decorator]
    @property
    def entry_id(self) -> str:
        return self.first_source.entry_id

    @computed_field  # type: ignore[prop-decorator]
    @property
    def state_key(self) -> str:
        return self.first_source.key

    @computed_field  # type: ignore[prop-decorator]
    @property
    def state_sha256(self) -> str:
        return self.first_source.sha256

    @computed_field  # type: ignore[prop-decorator]
    @property
    def state_codec(self) -> str:
        return self.first_source.codec

    @property
    def is_miss(self) -> bool:
        """The plan runs all T steps from noise."""
        return self.source is PlanSource.NOISE or self.start_step == 0

    def run_steps(self, asked: int) -> int:
        """Return T of the run by `model`, which skips `start_step` of these steps. asked: the request's own T."""
        own = self._own()
        return asked if own is None else own.run_steps(asked)

    def run_guidance(self, asked: float) -> float:
        """Return the guidance of the run by `model`. asked: the request's guidance."""
        own = self._own()
        return asked if own is None or own.guidance is None else own.guidance

    @property
    def prompted_from(self) -> int:
        """Steps of T before which the run by `model` does not see its prompt."""
        own = self._own()
        return 0 if own is None else own.prompted_from

    def _own(self) -> ModelPlan | None:
        return next((one for one in self.may_run if one.model == self.model), None)


_NO_SOURCE = Source("")
_OF_FIRST = {"entry_id": "entry_id", "key": "state_key", "sha256": "state_sha256", "codec": "state_codec"}
"""Fields of a source, and of the plans of earlier versions, which have one source."""


@dataclass(frozen=True, slots=True)
class CompatKey(Stored):
    """Properties that must be equal for a latent of one request to start another (docs/architecture.md, Nouns)."""

    weights_hash: str
    sampler: str
    """Name and configuration hash of the noise process: the sampler, or DDIM where it shares DDIM's noise levels."""
    dtype: str
    size: Size
    steps: int
    """T of the schedule, which is not part of the filter key. A state after K of T steps also fits K' of T' where both
    have exactly the same noise level; the planner checks that."""
    frames: Annotated[int, Field(exclude_if=lambda frames: frames == 1)] = 1
    """Frames of the clip; 1: an image."""

    def __str__(self) -> str:
        """Return the key that index searches filter by: every property except T."""
        length = "" if self.frames == 1 else f"x{self.frames}"
        return f"{self.weights_hash}/{self.sampler}/{self.dtype}/{self.size}{length}"


PICTURE_STEP = 0
"""Step number of the finished image among an entry's states; latents have steps from 1."""
PICTURE_CODEC = "png"


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
    encoder_hash: str = ""
    exact_key: str = ""
    checkpoint_key: str = ""
    checkpoint_step: int = 0
    warnings: tuple[str, ...] = ()
    confirmed: bool = False
    """The row notes that the broker has the job's task. Only the catalog writes this note, shortly after the send."""
    buried: bool = False
    """The row of a failed job notes that its task is a dead letter."""

    @property
    def frames(self) -> int:
        """Frames of the result: those of the lead, and those that the run generates."""
        lead = self.plan.lead
        return self.request.frames + (lead.frames - lead.held if lead is not None else 0)

    @property
    def promised(self) -> bool:
        """A client may get the acceptance: the task was sent (docs/architecture.md, Delivery rules)."""
        return self.confirmed or self.state is not JobState.QUEUED


@dataclass(frozen=True, slots=True)
class State:
    """One reusable part of an entry: the latent after `step` steps, or at step 0 the finished image."""

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
        """The state's blob is the image of the entry's job, which the job names as its result as well."""
        return self.step == PICTURE_STEP

    def bare(self) -> State:
        """Return the state without key, codec and hash, which take twice the memory of the rest."""
        return State(self.entry_id, self.step, "", self.bytes, "", "", self.uses, self.created_at, self.used_at)

    def used(self, at: float) -> State:
        """Return the state with one more use at time `at`."""
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
    root: str = ""
    """Id of the entry whose run began from noise, and from which this entry descends; empty: this entry itself."""
    seed: int | None = None
    """Seed of the request; None in entries of versions that did not keep the seed."""

    @property
    def root_id(self) -> str:
        """Id of the entry at the start of the chain of hits that led to this entry."""
        return self.root or self.id

    @property
    def latents(self) -> tuple[State, ...]:
        """The entry's latents, from which only a model with the same weights can start."""
        return tuple(state for state in self.states if not state.is_picture)

    @property
    def picture(self) -> State | None:
        """The entry's finished image, from which any model can start; None: not kept, or evicted."""
        return next((state for state in self.states if state.is_picture), None)


@dataclass(frozen=True, slots=True)
class Hit:
    """One result of an index search."""

    entry_id: str
    similarity: float
    """Cosine similarity, computed again in float32."""


@dataclass(frozen=True, slots=True)
class IndexFilter:
    """Entries that a search may return. compat: str(CompatKey). owners: the scope keys visible to the caller."""

    compat: str = ""
    owners: tuple[str, ...] = ()
    encoder_hash: str = ""


@dataclass(frozen=True, slots=True)
class IndexItem:
    """An entry's record in the index: its named vectors and the values that searches filter by."""

    entry_id: str
    vectors: dict[str, Vector] = field(default_factory=dict)
    compat: str = ""
    owner: str = ""
    encoder_hash: str = ""


def vector_bytes(vector: Vector) -> bytes:
    """Return the vector as float32 bytes, little endian: the format of embeddings in messages and rows."""
    return np.ascontiguousarray(vector, dtype="<f4").tobytes()


def vector_from(data: bytes) -> Vector:
    """Return the embedding that `vector_bytes` wrote, shape (dim,)."""
    return np.frombuffer(data, dtype="<f4").astype(np.float32)


def owner_key(scope: Scope, tenant: str, user: str) -> str:
    """Return the scope key of an entry. Callers see the entries of their `visible_owners`."""
    match scope:
        case Scope.PRIVATE:
            return f"private:{tenant}:{user}"
        case Scope.TENANT:
            return f"tenant:{tenant}"
        case Scope.PUBLIC:
            return "public"


def visible_owners(tenant: str, user: str) -> tuple[str, ...]:
    """Return every scope key whose entries this caller may start from."""
    return tuple(owner_key(scope, tenant, user) for scope in Scope)
