"""Who may have a job in hand: many together, or one that must be alone (design §8, Attempts)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable


class Turns:
    """Those who must be alone come first, else they would wait for ever; each waits for those in hand to be done."""

    def __init__(self) -> None:
        self._together = self._waiting = 0
        self._alone = False
        self._news = asyncio.Event()

    @contextlib.asynccontextmanager
    async def together(self) -> AsyncIterator[None]:
        """Beside any number of others."""
        await self._until(lambda: not self._alone and not self._waiting)
        self._together += 1
        try:
            yield
        finally:
            self._together -= 1
            self._news.set()

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """With nobody else."""
        self._waiting += 1
        try:
            await self._until(lambda: not self._alone and not self._together)
            self._alone = True
        finally:
            self._waiting -= 1
            self._news.set()
        try:
            yield
        finally:
            self._alone = False
            self._news.set()

    async def _until(self, free: Callable[[], bool]) -> None:
        while not free():
            self._news.clear()  # nothing is awaited between the look and this, so no news is missed
            await self._news.wait()
