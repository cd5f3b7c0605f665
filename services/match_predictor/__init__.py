"""Decides whether looking for a similar cached prompt is worth it (NIRVANA §5.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol

from shared.domain.types import Vector


class MatchPredictor(Protocol):
    """Judges the embeddings that one search looks through: another scope's, size's or model's never weigh in."""

    name: ClassVar[str]

    def predict(self, vector: Vector) -> tuple[bool, float]:
        """(whether a close enough entry is likely, a score that grows with the likelihood); vector (dim,), unit."""
        ...

    def update(self, added: Mapping[str, Vector], removed: Sequence[str]) -> None:
        """Entries that came and went, by entry id; an id already there is replaced, an unknown one is fine."""
        ...

    def refit(self) -> Callable[[], None] | None:
        """Work to be done on another thread before predictions are good again; None: nothing to do."""
        ...

    def __len__(self) -> int: ...
