"""A question on its way to a plan: its model, rules, embedding and time limit, and the failures met so far."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from services.retriever.question import Question, Rules
from services.retriever.tables import Known
from shared.domain.errors import InvalidRequestError
from shared.domain.forecasts import Forecast
from shared.domain.parts import Parts
from shared.domain.types import Vector, vector_from


@dataclass
class Asked:
    """A question on its way to a plan, with the failures met while looking for an answer."""

    question: Question
    known: Known
    """The model that is asked for."""
    rules: Rules
    vector: Vector | None
    part_vectors: tuple[Vector, Vector] | None = None
    """Embeddings of object and background; None unless the prompt names both."""
    notes: tuple[str, ...] = ()
    """Notes about the latents' K table, for the plan."""
    unknown_share: float = 0.0
    """Share of the prompt's words that name something and that the encoder was never shown."""
    dry_run: bool = False
    """Nothing is counted."""
    degraded: list[str] = field(default_factory=list)
    forecasts: tuple[Forecast, ...] = ()
    """What runs would take now; empty: the plan follows no deadline."""
    over_at: float = math.inf
    """Monotonic time after which no port is waited for."""

    @property
    def pair(self) -> tuple[Vector, Vector] | None:
        """The embeddings to search pairs by; None where no pair may start the request."""
        return self.part_vectors if self.rules.pairs else None


def part_vectors_in(of_object: bytes, of_background: bytes, parts: Parts | None) -> tuple[Vector, Vector] | None:
    """Decode the embeddings of both parts; None unless the prompt names both. Raises InvalidRequestError."""
    if parts is None or not parts.both:
        return None
    found = vector_in(of_object, "object_vector"), vector_in(of_background, "background_vector")
    return (found[0], found[1]) if found[0] is not None and found[1] is not None else None


def vector_in(data: bytes, field: str = "vector") -> Vector | None:
    """Decode the embedding; None when there is none. Raises InvalidRequestError for invalid bytes."""
    if not data:
        return None
    if len(data) % 4:
        raise InvalidRequestError(field, "must be float32, little endian: a multiple of 4 bytes", len(data))
    vector = vector_from(data)
    if not np.isfinite(vector).all():
        raise InvalidRequestError(field, "must hold finite numbers only")
    return vector
