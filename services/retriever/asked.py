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
    """A question on its way to a plan, with what went wrong while it was looked into."""

    question: Question
    known: Known
    """The model that is asked for."""
    rules: Rules
    vector: Vector | None
    notes: tuple[str, ...] = ()
    """Notes on the K table of the latents, for the plan."""
    degraded: list[str] = field(default_factory=list)
    over_at: float = math.inf
    """When the clock is here no port is waited for any longer."""


def vector_in(data: bytes) -> Vector | None:
    """The embedding; None when there is none. InvalidRequestError for what is not one."""
    if not data:
        return None
    if len(data) % 4:
        raise InvalidRequestError("vector", "float32, little endian: a multiple of 4 bytes", len(data))
    vector = vector_from(data)
    if not np.isfinite(vector).all():
        raise InvalidRequestError("vector", "finite numbers")
    return vector
