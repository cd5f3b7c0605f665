"""Unreferenced blobs, kept for a grace while workers may still read them (docs/architecture.md, Write order)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from shared.runtime.clock import Clock
from shared.service.backends import Backends


class DeferredDeletes:
    """Queue of blob keys in memory. After a restart, the orphan collector finds the keys that this queue lost."""

    def __init__(self, backends: Backends, clock: Clock, grace_s: float, check: Callable[[], None]) -> None:
        """`check` raises when this process may not delete any more."""
        self._backends, self._clock, self._grace_s, self._check = backends, clock, grace_s, check
        self._keys: list[tuple[float, list[str]]] = []

    def add(self, keys: Sequence[str]) -> None:
        """Delete these blobs after the grace."""
        if keys:
            self._keys.append((self._clock.monotonic() + self._grace_s, list(keys)))

    async def delete(self, *, unread: bool = False) -> int:
        """Delete the blobs whose grace is over and that no row names; return how many.

        `unread`: no process can be reading, so no grace is needed.
        """
        now = math.inf if unread else self._clock.monotonic()
        due = [key for at, keys in self._keys if at <= now for key in keys]
        if not due:
            return 0
        named = await self._backends.catalog.entries.referenced(due)
        gone = [key for key in due if key not in named]
        self._check()
        await self._backends.blobs.delete(gone)
        self._keys = [(at, keys) for at, keys in self._keys if at > now]
        return len(gone)
