"""State shared by the workers of one process: the lock that lets a job run alone, and their claims."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from services.gpu_worker.jobs.claims import Claims
from shared.domain.ids import new_id


class WorkerProcess:
    """State that the workers of one process share, because they crash together: the lock for jobs that run alone, and
    one row in the catalog.

    With one row per worker, a job that kills the process would add crashes to the rows of the other workers too. Those
    crashes would count as the fleet's own and excuse the job.
    """

    def __init__(self) -> None:
        self.id, self.turns = new_id(), SharedExclusiveLock()
        self.claims: set[Claims] = set()

    @property
    def holds(self) -> bool:
        """Return whether the end of the process would count as a crash: one of its workers claims or holds a job."""
        return any(claims.holds for claims in self.claims)


class SharedExclusiveLock:
    """A lock that many holders share or one holder has alone. A waiting `alone` blocks new sharers, else it could wait
    for ever. Each side waits until the other side has released the lock."""

    def __init__(self) -> None:
        self._together = self._waiting = 0
        self._alone = False
        self._news = asyncio.Event()

    @contextlib.asynccontextmanager
    async def together(self) -> AsyncIterator[None]:
        """Hold the lock beside any number of other sharers."""
        await self._until(lambda: not self._alone and not self._waiting)
        self._together += 1
        try:
            yield
        finally:
            self._together -= 1
            self._news.set()

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Hold the lock alone."""
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
            self._news.clear()  # nothing is awaited between the check and this line, so no release is missed
            await self._news.wait()
