"""Cache entries with their states, what the index holds of them, and who may start from them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from shared.domain.json_values import Stored
from shared.domain.masks import Mask
from shared.domain.parts import Parts
from shared.domain.requests import CacheMode, Request, Scope, Size

OBJECT, BACKGROUND = "object", "background"
"""Names of the vectors by which an index finds an entry by the parts of its prompt (FlexCache §4.2.1)."""
Vector = npt.NDArray[np.float32]
"""A unit-length embedding, shape (dim,), float32."""


STEERED = "as-"
"""Prefix of the part of CompatKey.sampler that names negative prompt and guidance."""
REUSE = "reuse-"
"""Prefix of the part that names the reuse between steps."""


@dataclass(frozen=True, slots=True)
class CompatKey(Stored):
    """Properties that must be equal for a latent of one request to start another (docs/architecture.md, Nouns)."""

    weights_hash: str
    sampler: str
    """Name and configuration hash of the noise process: the sampler, or DDIM where it shares DDIM's noise levels. With
    reuse between steps, `:reuse-` and its key follow; with a negative prompt, or another guidance than the model's own,
    `:as-` and a hash of both."""
    dtype: str
    size: Size
    steps: int
    """T of the schedule, which is not part of the filter key. A state after K of T steps also fits K' of T' where both
    have exactly the same noise level; the planner checks that."""
    frames: Annotated[int, Field(exclude_if=lambda frames: frames == 1)] = 1
    """Frames of the clip; 1: an image."""

    @property
    def step_reuse(self) -> str:
        """Return the key of the reuse between steps; empty without."""
        return self._part(REUSE)

    @property
    def steered(self) -> str:
        """Return the hash of negative prompt and guidance; empty without, and with the model's own."""
        return self._part(STEERED)

    @property
    def unsteered(self) -> CompatKey:
        """Return the key without negative prompt and guidance."""
        return replace(self, sampler=self.sampler.partition(f":{STEERED}")[0])

    def _part(self, name: str) -> str:
        return next((part.removeprefix(name) for part in self.sampler.split(":") if part.startswith(name)), "")

    def __str__(self) -> str:
        """Return the key that index searches filter by: every property except T."""
        length = "" if self.frames == 1 else f"x{self.frames}"
        return f"{self.weights_hash}/{self.sampler}/{self.dtype}/{self.size}{length}"


PICTURE_STEP = 0
"""Step number of the finished image among an entry's states; latents have steps from 1."""
PICTURE_CODEC = "png"
NEEDS = "@"
"""Separates in `State.codec` the name of the codec from the step of the state that this one needs: keyframes@25."""


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

    @property
    def needs(self) -> int:
        """Step of the entry's state without which this one cannot be read (FlexCache §4.3); 0: it needs no other."""
        step = self.codec.partition(NEEDS)[2]
        return int(step) if step.isdecimal() else 0

    def bare(self) -> State:
        """Return the state without key and hash, which take twice the memory of the rest, and without the codec of a
        state that needs no other."""
        codec = self.codec if NEEDS in self.codec else ""
        return State(self.entry_id, self.step, "", self.bytes, codec, "", self.uses, self.created_at, self.used_at)

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
    background_root: str = ""
    """Root of the entry that gave the background, where the run began from a pair; empty: from one entry, or noise."""
    parts: Parts | None = None
    """Object and background that the prompt names; None: not extracted."""
    mask: Mask | None = None
    """Masks of object and background; None: the clip is not segmented, or its masks were lost."""

    @property
    def root_id(self) -> str:
        """Id of the entry at the start of the chain of hits that led to this entry."""
        return self.root or self.id

    @property
    def root_ids(self) -> tuple[str, ...]:
        """Ids of all entries that began from noise and from which this entry descends: two of a stitched one."""
        return tuple(dict.fromkeys(filter(None, (self.root_id, self.background_root))))

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


def text_owner(request: Request) -> str:
    """Return the callers for whom what was computed from the request's texts alone may be kept. Others would learn from
    the seconds of their own request that the text was sent before."""
    scope = Scope.PRIVATE if request.cache is CacheMode.OFF else request.scope
    return owner_key(scope, request.tenant, request.user)


def visible_owners(tenant: str, user: str, *, public: bool = True) -> tuple[str, ...]:
    """Return every scope key whose entries this caller may start from. public: the caller's tenant shares public
    entries with others."""
    return tuple(owner_key(scope, tenant, user) for scope in Scope if public or scope is not Scope.PUBLIC)
