"""The order in which workers take the waiting jobs of a lane: least slack first, with ageing (PatchedServe §6.2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

PATIENCE = 10.0
"""Standalone times after which a waiting job has aged."""
UNKNOWN_AGED_S = 60.0
"""Seconds after which a waiting job of unknown standalone time has aged."""
AGED_EVERY = 4
"""One claim of a worker in AGED_EVERY takes the oldest job that has aged."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A waiting job as the order reads it; times in seconds, by one clock."""

    id: str
    """Ids grow with the time of acceptance."""
    created_at: float
    priority: int = 0
    deadline_s: float | None = None
    """Seconds after `created_at`."""
    standalone_s: float = 0.0
    """Predicted seconds of the job alone; 0: unknown."""
    batched_s: float = 0.0
    """Predicted seconds of the job in a full batch; 0: as alone."""

    @property
    def needs_s(self) -> float:
        """Seconds that the job needs among others: a full batch is where the order matters."""
        return self.batched_s or self.standalone_s


def most_urgent(jobs: Iterable[Waiting], now: float, limit: int, *, aged_first: bool) -> list[str]:
    """Return the ids of the most urgent jobs, at most `limit`.

    Jobs that cannot meet their deadline any more come last. Then priority counts, then slack = (time left − predicted
    seconds in a full batch) / standalone. Jobs without a deadline follow those with one, in order of acceptance.
    aged_first: jobs that have aged come before all others, oldest first.
    """

    def order(job: Waiting) -> tuple[bool, bool, int, bool, float, str]:
        if aged_first and has_aged(job, now):
            return False, False, 0, False, 0.0, job.id
        spare = 0.0 if job.deadline_s is None else job.created_at + job.deadline_s - now - job.needs_s
        slack = spare / job.standalone_s if job.standalone_s > 0 else spare
        return aged_first, spare < 0, -job.priority, job.deadline_s is None, slack if spare > 0 else 0.0, job.id

    return [job.id for job in sorted(jobs, key=order)[:limit]]


def has_aged(job: Waiting, now: float) -> bool:
    return now - job.created_at > (PATIENCE * job.standalone_s or UNKNOWN_AGED_S)
