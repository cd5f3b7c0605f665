"""Recently indexed entries, which the maintainer looks up once more.

A killed index server loses the graph positions of the entries from its last second (shared/index/weaviate/findable.py).
A killed maintainer may have written its last entries to the catalog only. Without this check, both would cost hits
until the next repair of the whole index; checking the newest entries costs one query.
"""

from __future__ import annotations

from collections.abc import Iterable

SETTLED_S = 5.0
"""Seconds after which searches keep finding an indexed entry, even if the server is killed."""
NEWEST = 1000
"""Number of the previous leader's entries that a new leader checks."""


class Fresh:
    """Entry ids, each with the monotonic time from which it is due for a check."""

    def __init__(self) -> None:
        self._due_at: dict[str, float] = {}

    def added(self, entry_ids: Iterable[str], now: float) -> None:
        self._due_at.update(dict.fromkeys(entry_ids, now + SETTLED_S))

    def due(self, now: float) -> list[str]:
        return sorted(entry_id for entry_id, at in self._due_at.items() if at <= now)

    def found(self, entry_ids: Iterable[str]) -> None:
        for entry_id in entry_ids:
            self._due_at.pop(entry_id, None)
