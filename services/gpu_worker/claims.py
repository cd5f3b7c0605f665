"""This process's claims: which are being made or held, and which got no answer and may stand all the same."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator

from shared.catalog import Jobs
from shared.ids import new_id
from shared.types import Job, JobState

REMEMBERED = 1000
"""Claims without an answer, the latest of them; of an older one the lease runs out."""


class Claims:
    """A row that an unanswered claim made ours, and that nobody draws, is handed back: left to its lease, it would
    count as a crash of its worker (design §8, Attempts).

    The rows name a holder that no other process has, not even the one before it that had its host and its pid.
    """

    def __init__(self, jobs: Jobs, worker: str, lease_s: float) -> None:
        self._jobs, self._lease_s = jobs, lease_s
        self._holder = f"{new_id()}-{worker}"
        self._held: list[str] = []
        """Ids of jobs, once for each delivery that claims or holds one at this moment."""
        self._unanswered: deque[str] = deque(maxlen=REMEMBERED)

    @contextlib.contextmanager
    def holding(self, job_id: str) -> Iterator[None]:
        """From before a claim until the row is ended or handed back."""
        self._held.append(job_id)
        try:
            yield
        finally:
            self._held.remove(job_id)

    async def claim(self, job_id: str) -> Job | None:
        """The catalog's `claim`; remembers that it got no answer."""
        try:
            job = await self._jobs.claim(job_id, self._holder, self._lease_s)
        except Exception:
            if job_id not in self._unanswered:
                self._unanswered.append(job_id)
            raise
        if job is not None and job_id in self._unanswered:
            self._unanswered.remove(job_id)
        return job

    async def hand_back(self, job: Job) -> bool:
        """Whether the row, as it was just read, was an unanswered claim's of this process, and is queued again."""
        ours = job.state is JobState.RUNNING and job.worker == self._holder
        if not ours or job.id in self._held or job.id not in self._unanswered:
            return False
        return await self._jobs.release(job.id, job.attempt)
