"""A question on its way to a plan: its model, rules, embedding and time limit, and the failures met so far."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from services.retriever.question import Question, Rules
from services.retriever.tables import Known
from shared.domain.errors import InvalidRequestError
from shared.domain.types import Vector, vector_from


@dataclass
class Asked:
    """A question on its way to a plan, with the failures met while looking for an answer."""

    question: Question
    known: Known
    """The model that is asked for."""
    rules: Rules
    vector: Vector | None
    notes: tuple[str, ...] = ()
    """Notes about the latents' K table, for the plan."""
    unknown_share: float = 0.0
    """Share of the prompt's words that name something and that the encoder was never shown."""
    dry_run: bool = False
    """Nothing is counted."""
    degraded: list[str] = field(default_factory=list)
    over_at: float = math.inf
    """Monotonic time after which no port is waited for."""


def vector_in(data: bytes) -> Vector | None:
    """Decode the embedding; None when there is none. Raises InvalidRequestError for invalid bytes."""
    if not data:
        return None
    if len(data) % 4:
        raise InvalidRequestError("vector", "must be float32, little endian: a multiple of 4 bytes", len(data))
    vector = vector_from(data)
    if not np.isfinite(vector).all():
        raise InvalidRequestError("vector", "must hold finite numbers only")
    return vector
