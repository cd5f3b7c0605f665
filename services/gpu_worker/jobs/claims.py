"""This process's claims: which are being made or held, and which got no answer and may stand all the same."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from shared.catalog import Jobs
from shared.domain.errors import NotFoundError, UnreadableRowError
from shared.domain.ids import new_id
from shared.domain.types import Job, JobState

REMEMBERED = 1000
"""Claims without an answer, the latest of them; of an older one the lease runs out, and counts as a crash."""


class Claims:
    """A row that an unanswered claim made ours, and that nobody draws, is handed back: left to its lease, it would
    count as a crash of its worker (design §8, Attempts).

    The rows name a holder that no other process has, not even the one before it that had its host and its pid.
    """

    def __init__(self, jobs: Jobs, worker: str, lease_s: float) -> None:
        self._jobs, self._lease_s = jobs, lease_s
        self.holder = f"{new_id()}-{worker}"
        self.busy = asyncio.Event()
        """Set as the first of several jobs comes; who reports them clears it."""
        self._busy_s, self._busy_from = 0.0, 0.0
        self._held: list[str] = []
        """Ids of jobs, once for each delivery that claims or holds one at this moment."""
        self._unanswered: dict[str, float] = {}
        """When each was last tried, by the event loop's clock."""

    @contextlib.contextmanager
    def holding(self, job_id: str) -> Iterator[None]:
        """From before a claim until the row is ended or handed back."""
        if not self._held:
            self._busy_from = asyncio.get_running_loop().time()
            self.busy.set()
        self._held.append(job_id)
        try:
            yield
        finally:
            busy_s = self.busy_s
            self._held.remove(job_id)
            if not self._held:
                self._busy_s = busy_s

    @property
    def holds(self) -> bool:
        """Whether a delivery claims or holds a job at this moment."""
        return bool(self._held)

    @property
    def busy_s(self) -> float:
        """Seconds, since the start, in which this worker held a job."""
        return self._busy_s + (asyncio.get_running_loop().time() - self._busy_from if self._held else 0.0)

    async def claim(self, job_id: str, *, alone: bool = False) -> Job | None:
        """The catalog's `claim`; remembers that it got no answer."""
        try:
            job = await self._jobs.claim(job_id, self.holder, self._lease_s, alone)
        except UnreadableRowError:  # an answer
            raise
        except Exception:
            self._unanswered.pop(job_id, None)
            self._unanswered[job_id] = asyncio.get_running_loop().time()
            if len(self._unanswered) > REMEMBERED:
                del self._unanswered[next(iter(self._unanswered))]
            raise
        if job is not None:
            self._unanswered.pop(job_id, None)
        return job

    async def repair(self) -> None:
        """Hands back what claims without an answer left running, wherever its task is by now: another worker that has
        it can but wait for the lease. Raises what the catalog raises."""
        for job_id, tried_at in list(self._unanswered.items()):
            if job_id in self._held:
                continue
            with contextlib.suppress(NotFoundError, UnreadableRowError):
                await self.hand_back(await self._jobs.get(job_id))
            # one that was on its way for a lease is on its way no more
            over = asyncio.get_running_loop().time() - tried_at > self._lease_s
            if over and self._unanswered.get(job_id) == tried_at:
                del self._unanswered[job_id]

    async def hand_back(self, job: Job) -> bool:
        """Whether the row, as it was just read, was an unanswered claim's of this process, and is queued again."""
        ours = job.state is JobState.RUNNING and job.worker == self.holder
        if not ours or job.id in self._held or job.id not in self._unanswered:
            return False
        return await self._jobs.release(job.id, job.attempt)
