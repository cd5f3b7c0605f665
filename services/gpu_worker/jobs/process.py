"""State shared by the workers of one process: the lock that lets a job run alone, and their claims."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from services.gpu_worker.jobs.claims import Claims
from shared.domain.ids import new_id


class WorkerProcess:
    """What the workers of one process share, because they crash together: which job runs alone, and one row in the
    catalog. With a row each, a job that kills the process would look like one of several that crash alike."""

    def __init__(self) -> None:
        self.id, self.turns = new_id(), SharedExclusiveLock()
        self.claims: set[Claims] = set()

    @property
    def holds(self) -> bool:
        """Whether the end of the process would be a crash: one of its workers claims or holds a job."""
        return any(claims.holds for claims in self.claims)


class SharedExclusiveLock:
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
