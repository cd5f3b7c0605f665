"""Answers that stay in memory, by texts of clients: a bounded number, for a bounded time."""

from __future__ import annotations

import asyncio
import time
from typing import Any, TypeVar

from cachetools import TTLCache

K = TypeVar("K")
V = TypeVar("V")
KEPT_S = 3600.0
"""Seconds for which a text and its answer stay: an erasure does not reach them."""
TIDIED = 10
"""Times in this period at which what is too old is deleted, also in an idle process."""


class ExpiringCache(TTLCache[K, V]):
    """The `most` newest answers of the last KEPT_S seconds; 0: none. Belongs to one event loop."""

    def __init__(self, most: int, seconds: float = KEPT_S) -> None:
        super().__init__(most, seconds, timer=time.monotonic)
        self._tidying = False

    def __setitem__(self, key: K, value: V, **how: Any) -> None:
        if self.maxsize:
            super().__setitem__(key, value, **how)
            self._tidy_later()

    def _tidy_later(self) -> None:
        if not self._tidying:
            self._tidying = True
            asyncio.get_running_loop().call_later(self.ttl / TIDIED, self._tidy)

    def _tidy(self) -> None:
        self._tidying = False
        self.expire()
        if len(self):
            self._tidy_later()
