"""No prediction: every request is looked up, which is best when a lookup costs little."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from shared.domain.types import Vector


class Always:
    name: ClassVar[str] = "always"

    def __init__(self) -> None:
        self._ids: set[str] = set()

    def predict(self, vector: Vector) -> tuple[bool, float]:
        return True, 1.0

    def update(self, added: Mapping[str, Vector], removed: Sequence[str]) -> None:
        self._ids.update(added)
        self._ids.difference_update(removed)

    def refit(self) -> Callable[[], None] | None:
        return None

    def __len__(self) -> int:
        return len(self._ids)
