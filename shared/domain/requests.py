"""A client's request and its words: modality, cache, scope, variation, size."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from shared.domain.json_values import Stored

MOST_DEADLINE_S = 30 * 86_400
"""Longest deadline of a request, and the age at which a job that still waits is cancelled."""


class Modality(StrEnum):
    IMAGE = "image"
    VIDEO = "video"

    @property
    def noun(self) -> str:
        """The noun for a result."""
        return "clip" if self is Modality.VIDEO else "image"


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


@dataclass(frozen=True, slots=True)
class Size(Stored):
    """Pixels, width × height."""

    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


@dataclass(frozen=True, slots=True)
class Upload(Stored):
    """An image that the client sent along, as the gateway stored it: a PNG of the request's size. Its transparent
    pixels, if any, are those to generate anew."""

    key: str
    """Blob key."""
    sha256: str
    masked: bool = False
    """Some pixels are transparent: the run holds all others."""


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
    """Seconds after acceptance. Of a request that names `slo`, the gateway computes them."""
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
    """Share of the steps that run after the image of `from_job` or `upload`, or after the last frame of
    `continue_job`."""
    continue_job: Annotated[str, Field(exclude_if=lambda job: not job)] = ""
    """Id of the job after whose last frame this clip goes on; empty: the clip is of its own."""
    slo: Annotated[str, Field(exclude_if=lambda slo: not slo)] = ""
    """Class of the deadline, of the setting `slo_classes`; empty: none named."""

    upload: Annotated[Upload | None, Field(exclude_if=lambda upload: upload is None)] = None
    """Image that the client sent along as the start; None: none."""

    @property
    def pixel_steps(self) -> int:
        """Frames × pixels × steps of a run from noise."""
        return self.frames * self.size.width * self.size.height * self.steps

    @property
    def names_start(self) -> bool:
        """The client chose the start: a job, or an image of its own."""
        return bool(self.named_job) or self.upload is not None

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
