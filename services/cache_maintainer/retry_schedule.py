"""When a job that cannot be cached, or whose picture cannot be embedded, is tried again: later and later."""

from __future__ import annotations

from collections.abc import Collection

FIRST_S, LONGEST_S = 60.0, 6 * 3600.0


class RetrySchedule:
    """The jobs that failed, each with how often, and from when on it is tried again (monotonic seconds)."""

    def __init__(self) -> None:
        self._jobs: dict[str, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def due(self, job_id: str, now: float) -> bool:
        return self._jobs.get(job_id, (0, now))[1] <= now

    def failed(self, job_id: str, now: float) -> float:
        """Seconds until it is due again."""
        times = self._jobs.get(job_id, (0, now))[0]
        wait_s = min(FIRST_S * 2.0 ** min(times, 20), LONGEST_S)
        self._jobs[job_id] = (times + 1, now + wait_s)
        return wait_s

    def keep(self, job_ids: Collection[str]) -> None:
        """Forgets all others: they were cached, or expired."""
        self._jobs = {job_id: known for job_id, known in self._jobs.items() if job_id in job_ids}
