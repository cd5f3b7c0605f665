"""When a job is given up for the crashes of its workers: only where the fleet's own crashes do not explain them."""

from __future__ import annotations

from collections.abc import Iterable

from shared.catalog.jobs.sweeping import Fleet
from shared.domain.types import Job

CRASHES_TOGETHER = 2
"""A job present at this many crashes runs alone (design §8, Attempts) …"""
CRASHES_ALONE = 3
"""… and fails after this many more at least …"""
UNLIKELY = 1e-5
"""… if the fleet's own crashes would bring as many with a smaller probability. A job is judged after each crash: 1e-4
would condemn one healthy job in 20,000 of three workers that are killed every five seconds (a simulation: tests)."""
QUIET = Fleet(crashes=0, busy_s=2 * 86400.0)
"""What is assumed of every fleet besides its history: two days of work without a crash."""


def chance(crashes: int, seconds: float, others: Fleet) -> float:
    """The probability of at least this many crashes in so many seconds, if a job and the others' crash at one rate.

    Two Poisson counts: given their sum, the job's is binomial with its share of the time. A rate that is known from a
    few crashes only is uncertain, and this takes that into account.
    """
    total, share = crashes + others.crashes, seconds / (seconds + others.busy_s) if seconds else 0.0
    if share == 1.0:
        return 1.0
    term = below = (1.0 - share) ** total
    for count in range(1, crashes):
        term *= (total - count + 1) / count * share / (1.0 - share)
        below += term
    return max(1.0 - below, 0.0)


def without(job: Job, fleet: Fleet) -> Fleet:
    """The fleet's crashes and busy seconds, less those at which the worker held this job."""
    return Fleet(max(fleet.crashes - job.crashes, 0), max(fleet.busy_s - job.exposed_s, 0.0))


def condemned(job: Job, fleets: Iterable[Fleet]) -> str:
    """Why the job is given up; empty where it is not.

    fleets: the workers of this deployment in several spans of time; the one that speaks most for the job counts.
    """
    if job.crashes_alone < CRASHES_ALONE:
        return ""
    others = [QUIET, *(other for other in (without(job, fleet) for fleet in fleets) if other.crashes)]
    likely = max(chance(job.crashes_alone, job.alone_s, other) for other in others)
    if likely >= UNLIKELY:
        return ""
    return (
        f"its worker crashed {job.crashes} times, {job.crashes_alone} of them in the {job.alone_s:.0f} s that the job "
        f"ran alone; as often as other workers crash, that has a probability of {likely:.0e}"
    )
