"""Entries the planner has read, so that a lookup beside a busy denoiser waits for no other thread.

A copy may be older than the last eviction only for as long as the fact of it travels; then a queued plan names a state
that is gone, and the worker, who looks again when it claims the job, takes a smaller K (design §8).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cachetools import LRUCache

from shared.domain.types import Entry


class Remembered:
    """At most `capacity` entries; the one longest not asked for goes first."""

    def __init__(self, capacity: int) -> None:
        self._entries: LRUCache[str, Entry] = LRUCache(capacity)
        self._forgot = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def mark(self) -> int:
        """Take it before reading, hand it to `put`: what was forgotten meanwhile is not remembered from an old read."""
        return self._forgot

    def known(self, entry_ids: Sequence[str]) -> dict[str, Entry]:
        """Those of them that are remembered."""
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
