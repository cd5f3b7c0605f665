"""Which entries came into the index a moment ago, and are looked for there once more.

An index server that is killed forgets the places of its last second's entries (shared/index/weaviate/findable.py), a
maintainer that is killed may have written its last ones to the catalog alone. Both would cost hits until the whole
index is next checked; looking at the newest costs a query.
"""

from __future__ import annotations

from collections.abc import Iterable

SETTLED_S = 5.0
"""What is found so long after it was added stays, whoever is killed."""
NEWEST = 1000
"""So many of its predecessor's entries a new leader looks for."""


class Fresh:
    """Entry ids, each with the monotonic time from which on it is worth looking."""

    def __init__(self) -> None:
        self._due_at: dict[str, float] = {}

    def added(self, entry_ids: Iterable[str], now: float) -> None:
        self._due_at.update(dict.fromkeys(entry_ids, now + SETTLED_S))

    def due(self, now: float) -> list[str]:
        return sorted(entry_id for entry_id, at in self._due_at.items() if at <= now)

    def found(self, entry_ids: Iterable[str]) -> None:
        for entry_id in entry_ids:
            self._due_at.pop(entry_id, None)
