"""The question that a plan answers: what the request asks for, and the rules that the operator sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from services.retriever.pictures import Refiner
from services.retriever.variety import Variety
from shared.domain.types import CompatKey, Request
from shared.models.k_table import KTable

StepIn = Callable[[int, int], int]
"""(K, T of a state) → the step of this request's T with exactly that noise level; 0 when there is none."""


@dataclass(frozen=True, slots=True)
class Question:
    """One request to plan."""

    request: Request
    model: str
    compat: CompatKey
    encoder_hash: str = ""
    predicted_hit: bool | None = None
    sampled: bool = False
    """Looked up although a miss is predicted."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The operator's settings for planning, as they apply to one question."""

    table: KTable
    """The K table for latents; without levels where none is in force."""
    no_table: str = ""
    """The reason why no table is in force for latents."""
    capture_steps: tuple[int, ...] = (5, 10, 15, 20, 25)
    """K of T = 50."""
    epsilon: float = 0.0
    """Share of hits generated from noise, so that images stay diverse (NIRVANA §9)."""
    insert_on_hit: bool = True
    refiners: tuple[Refiner, ...] = ()
    """Models that may continue from a finished image: the named model alone, else every served model."""
    variety: Variety | None = None
    """None: plans name no relations. With `reuse_rules=paper` relations are recorded and refuse nothing."""
