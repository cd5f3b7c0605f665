"""The rule that fails a job for the crashes of its workers: only if the fleet's own crash rate does not explain
them."""

from __future__ import annotations

from collections.abc import Iterable

from shared.catalog.jobs.sweeping import Fleet
from shared.domain.types import Job

CRASHES_TOGETHER = 2
"""A job that was present at this many crashes runs alone (docs/architecture.md, Crash accounting)."""
CRASHES_ALONE = 3
"""A job fails only after this many crashes while it ran alone."""
UNLIKELY = 1e-5
"""A job fails only if its crashes have a smaller probability than this at the fleet's crash rate. A job is judged after
each crash: 1e-4 would condemn one healthy job in 20,000 of three workers that are killed every five seconds (simulated
in the tests)."""
QUIET = Fleet(crashes=0, busy_s=2 * 86400.0)
"""A record assumed for every deployment beside the measured ones: two days of work without a crash."""


def chance(crashes: int, seconds: float, others: Fleet) -> float:
    """Return the probability of at least this many crashes in `seconds`, if the job and the others crash at one rate.

    Two Poisson counts: given their sum, the job's count is binomial, with the job's share of the time as its
    probability. Conditioning on the sum accounts for a rate that is known from a few crashes only.
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
    """Return the fleet's crashes and busy seconds, minus those of workers while they held this job."""
    return Fleet(max(fleet.crashes - job.crashes, 0), max(fleet.busy_s - job.exposed_s, 0.0))


def condemned(job: Job, fleets: Iterable[Fleet]) -> str:
    """Return the reason why the job fails for its crashes; empty if it does not fail.

    fleets: the workers of this deployment in several spans of time; the span with the highest crash rate, which excuses
    the job most, counts.
    """
    if job.crashes_alone < CRASHES_ALONE:
        return ""
    others = [QUIET, *(other for other in (without(job, fleet) for fleet in fleets) if other.crashes)]
    likely = max(chance(job.crashes_alone, job.alone_s, other) for other in others)
    if likely >= UNLIKELY:
        return ""
    return (
        f"its worker crashed {job.crashes} times, {job.crashes_alone} of them in the {job.alone_s:.0f} s that the job "
        f"ran alone; at the crash rate of the other workers, the probability of this is {likely:.0e}"
    )
