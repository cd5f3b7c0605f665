"""Plans: where a job starts, from which cached states, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, computed_field, model_validator

from shared.domain.json_values import Stored
from shared.domain.parts import Parts


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
    STITCHED = "stitched"  # from a pair of latents: the object of one, the background of another (FlexCache §4.2.2)
    EXACT = "exact"
    UPLOAD = "upload"  # from an image that the client sent along


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
    """latent | image | pair | exact"""
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
    background_id: Annotated[str, Field(exclude_if=lambda one: not one)] = ""
    """Of a pair: the entry that gives the background; `entry_id` gives the object. Empty: no pair."""
    background_prompt: Annotated[str, Field(exclude_if=lambda one: not one)] = ""
    object_similarity: Annotated[float, Field(exclude_if=lambda one: not one)] = 0.0
    """Of a pair: cosine of the two object phrases. `similarity` is the lower of both (FlexCache §4.2.1)."""
    background_similarity: Annotated[float, Field(exclude_if=lambda one: not one)] = 0.0


@dataclass(frozen=True, slots=True)
class Source(Stored):
    """One cached state or stored image that a plan starts from. Of a pair, the first gives the object."""

    entry_id: str
    key: str = ""
    """Blob key."""
    sha256: str = ""
    codec: str = ""
    mask_key: Annotated[str, Field(exclude_if=lambda key: not key)] = ""
    """Blob key of the entry's masks, by which a pair is stitched; empty where the start is no pair."""
    mask_sha256: Annotated[str, Field(exclude_if=lambda sha256: not sha256)] = ""
    picture_key: Annotated[str, Field(exclude_if=lambda key: not key)] = ""
    """Blob key of the entry's image, whose unchanged patches the run holds; empty without `Plan.region_until`."""
    picture_sha256: Annotated[str, Field(exclude_if=lambda sha256: not sha256)] = ""


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

    def whole(self, frames: int) -> int:
        """Return the frames of the whole clip. frames: those of the run, with the held ones."""
        return self.frames + frames - self.held


@dataclass(frozen=True, slots=True)
class Soonest(Stored):
    """The run that would finish first, by prediction."""

    run: str
    """Model, start step and T, for people."""
    finish_s: float
    """Seconds after acceptance."""
    alone_s: float
    """Seconds of the quickest run, which may be another one, on a worker of its own."""


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
    background_root: Annotated[str, Field(exclude_if=lambda root: not root)] = ""
    """Of a pair: root of the entry that gives the background; `root` is that of the object's entry."""
    parts: Annotated[Parts | None, Field(exclude_if=lambda parts: parts is None)] = None
    """Object and background that the prompt names; None: not extracted."""
    step_reuse: Annotated[str, Field(exclude_if=lambda key: not key)] = ""
    """Key of the reuse between steps of `model` at planning; empty: none. With another key at the claim, a latent hit
    becomes a miss."""
    lead: Annotated[Lead | None, Field(exclude_if=lambda lead: lead is None)] = None
    """Finished frames with which the clip begins; None: all its frames are generated."""
    for_deadline: Annotated[str, Field(exclude_if=lambda change: not change)] = ""
    """What the plan changes so that the request meets its deadline: `model`, `steps` or `start`; empty: nothing."""
    uncached: Annotated[bool, Field(exclude_if=lambda uncached: not uncached)] = False
    """The result becomes no cache entry, because it descends from an uploaded image (docs/adr/0026-uploads.md)."""
    region_until: Annotated[int, Field(exclude_if=lambda step: not step)] = 0
    """Step up to which unchanged patches keep the source's trajectory (docs/adr/0023-regions.md); 0: none do."""
    soonest: Annotated[Soonest | None, Field(exclude_if=lambda one: one is None)] = None
    """The soonest run within the bound; set where even that is predicted late."""

    @property
    def roots(self) -> tuple[str, ...]:
        """The roots that the image descends from: none, one, or two of a pair."""
        return tuple(dict.fromkeys(filter(None, (self.root or self.entry_id, self.background_root))))

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of `degraded` that people read beside `reason`: without those that `reason` states."""
        return tuple(note for note in self.degraded if note not in self.reason)

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
