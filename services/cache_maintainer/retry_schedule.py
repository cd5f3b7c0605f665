"""Retry times of jobs that could not be cached, or whose image could not be embedded: exponential backoff."""

from __future__ import annotations

from collections.abc import Collection

FIRST_S, LONGEST_S = 60.0, 6 * 3600.0


class RetrySchedule:
    """Failed jobs, each with its number of failures and the time of its next retry (monotonic seconds)."""

    def __init__(self) -> None:
        self._jobs: dict[str, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def due(self, job_id: str, now: float) -> bool:
        return self._jobs.get(job_id, (0, now))[1] <= now

    def failed(self, job_id: str, now: float) -> float:
        """Record a failure and return the seconds until the next retry."""
        times = self._jobs.get(job_id, (0, now))[0]
        wait_s = min(FIRST_S * 2.0 ** min(times, 20), LONGEST_S)
        self._jobs[job_id] = (times + 1, now + wait_s)
        return wait_s

    def keep(self, job_ids: Collection[str]) -> None:
        """Drop all other jobs: they were cached, or expired."""
        self._jobs = {job_id: known for job_id, known in self._jobs.items() if job_id in job_ids}
