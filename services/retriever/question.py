"""The question that a plan answers: what the request asks for, and the rules that the operator sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from services.retriever.pictures import Refiner
from shared.domain.types import CompatKey, Request
from shared.models.k_table import KTable

StepIn = Callable[[int, int], int]
"""(K, T of a state) → the step of this request's T with exactly that noise level; 0 when there is none."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be planned."""

    request: Request
    model: str
    compat: CompatKey
    encoder_hash: str = ""
    predicted_hit: bool | None = None
    sampled: bool = False
    """Looked up although a miss is predicted."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator decided."""

    table: KTable
    """The table for latents; without a level where none is in force."""
    no_table: str = ""
    """Why none is in force for latents."""
    capture_steps: tuple[int, ...] = (5, 10, 15, 20, 25)
    """K of T = 50."""
    epsilon: float = 0.0
    """Share of hits drawn from noise, so that pictures stay diverse (NIRVANA §9)."""
    insert_on_hit: bool = True
    refiners: tuple[Refiner, ...] = ()
    """Who may go on from a finished picture: the named model alone, else every one that is served."""
