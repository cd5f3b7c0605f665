"""Entries kept in memory, so that a lookup beside a busy denoiser waits for no other thread.

A copy can be stale only until the eviction's event arrives. A plan made in that time may name an evicted state. The
worker revalidates the plan when it claims the job, and then takes a smaller K (docs/architecture.md, Delivery rules).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cachetools import LRUCache

from shared.domain.types import Entry


class Remembered:
    """At most `capacity` entries; the least recently used is dropped first."""

    def __init__(self, capacity: int) -> None:
        self._entries: LRUCache[str, Entry] = LRUCache(capacity)
        self._forgot = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def mark(self) -> int:
        """A counter to take before reading and to pass to `put`: entries read before a `forget` are then not stored
        after it."""
        return self._forgot

    def known(self, entry_ids: Sequence[str]) -> dict[str, Entry]:
        """Return the entries that are in memory, by id; the others are left out."""
        return {entry_id: self._entries[entry_id] for entry_id in entry_ids if entry_id in self._entries}

    def put(self, entries: Iterable[Entry], mark: int) -> None:
        if mark == self._forgot and self._entries.maxsize:
            self._entries.update((entry.id, entry) for entry in entries)

    def forget(self, entry_ids: Iterable[str]) -> None:
        self._forgot += 1
        for entry_id in entry_ids:
            self._entries.pop(entry_id, None)

    def forget_all(self) -> None:
        self._forgot += 1
        self._entries.clear()
