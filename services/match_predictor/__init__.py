"""Decides whether to look for a similar cached prompt at all (NIRVANA §5.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol

from shared.domain.types import Vector


class MatchPredictor(Protocol):
    """Predictor for the embeddings of one search space: other scopes, sizes or models have no influence."""

    name: ClassVar[str]

    def predict(self, vector: Vector) -> tuple[bool, float]:
        """Return (hit expected, score that grows with the likelihood); `vector` has shape (dim,), unit length."""
        ...

    def update(self, added: Mapping[str, Vector], removed: Sequence[str]) -> None:
        """Add and remove entries by id. An id that is present is replaced; an unknown id is ignored."""
        ...

    def refit(self) -> Callable[[], None] | None:
        """Return a function to run on another thread before predictions are accurate again, or None."""
        ...

    def __len__(self) -> int: ...
