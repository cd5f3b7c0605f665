"""The claims of this process: those in progress or held, and those without an answer, which may stand in the
catalog."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Iterator

from shared.catalog import Jobs
from shared.domain.errors import NotFoundError, UnreadableRowError
from shared.domain.ids import new_id
from shared.domain.types import Job, JobState

REMEMBERED = 1000
"""Number of unanswered claims that are kept; the oldest is dropped first. The row of a dropped claim stays claimed
until its lease runs out, which counts as a crash."""


class Claims:
    """Hand back rows that an unanswered claim made ours and that no attempt runs. When the lease of such a row runs
    out, the row counts as a crash of its worker (docs/architecture.md, Crash accounting).

    The rows name a holder that is unique to this process: an earlier process with the same host and pid had another
    name.
    """

    def __init__(self, jobs: Jobs, worker: str, lease_s: float) -> None:
        self._jobs, self._lease_s = jobs, lease_s
        self.holder = f"{new_id()}-{worker}"
        self.busy = asyncio.Event()
        """Set when a worker without jobs gets its first one; the reporting loop clears it."""
        self._busy_s, self._busy_from = 0.0, 0.0
        self._held: list[str] = []
        """Ids of jobs, once for each delivery that claims or holds a job at this moment."""
        self._unanswered: dict[str, float] = {}
        """Time of the last try per job id, by the event loop's clock."""

    @contextlib.contextmanager
    def holding(self, job_id: str) -> Iterator[None]:
        """Count the job as held, from before its claim until its row is ended or handed back."""
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
        """Return whether a delivery claims or holds a job at this moment."""
        return bool(self._held)

    @property
    def held(self) -> frozenset[str]:
        """Return the ids of the jobs that deliveries claim or hold at this moment."""
        return frozenset(self._held)

    @property
    def busy_s(self) -> float:
        """Seconds, since the start, in which this worker held a job."""
        return self._busy_s + (asyncio.get_running_loop().time() - self._busy_from if self._held else 0.0)

    async def claim(self, job_id: str, *, alone: bool = False) -> Job | None:
        """Call the catalog's `claim`, and remember the job when no answer came."""
        return await self._answered(job_id, self._jobs.claim(job_id, self.holder, self._lease_s, alone))

    async def claim_new(self, job_id: str, lane: str, *, own_task: bool) -> Job | None:
        """Call the catalog's `claim_new`, and remember the job when no answer came."""
        claiming = self._jobs.claim_new(job_id, lane, self.holder, self._lease_s, own_task=own_task)
        return await self._answered(job_id, claiming)

    async def _answered(self, job_id: str, claiming: Awaitable[Job | None]) -> Job | None:
        try:
            job = await claiming
        except UnreadableRowError:  # this is an answer
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
        """Hand back rows that unanswered claims left running, wherever their tasks are by now. Another worker that has
        the task can only wait for the lease to run out. Raises what the catalog raises."""
        for job_id, tried_at in list(self._unanswered.items()):
            if job_id in self._held:
                continue
            with contextlib.suppress(NotFoundError, UnreadableRowError):
                await self.hand_back(await self._jobs.get(job_id))
            # after one lease an unanswered claim can no longer reach the catalog
            over = asyncio.get_running_loop().time() - tried_at > self._lease_s
            if over and self._unanswered.get(job_id) == tried_at:
                del self._unanswered[job_id]

    async def hand_back(self, job: Job) -> bool:
        """Return whether the row, as just read, was claimed by an unanswered claim of this process and is now queued
        again."""
        ours = job.state is JobState.RUNNING and job.worker == self.holder
        if not ours or job.id in self._held or job.id not in self._unanswered:
            return False
        return await self._jobs.release(job.id, job.attempt)
