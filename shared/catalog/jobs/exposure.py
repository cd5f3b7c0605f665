"""Columns that say how long workers held a job and how often they crashed meanwhile; claims and sweeps set them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from shared.catalog.tables import jobs, now_s
from shared.domain.types import JobState

RENEWALS = 3
"""In the time of a lease, so that the lease outlives a catalog that is away for a moment."""

c = jobs.c
_NOW: Any = now_s()
_RUNNING: Any = c.state == JobState.RUNNING.value
_HELD_S: Any = _NOW - c.seen_at
_HALF_S: Any = (c.lease_until - c.seen_at) / (2.0 * RENEWALS)
# on average a worker dies half-way between two renewals; the sweeper only finds a lease that ran out
_LOST_S: Any = sa.case((_HALF_S <= 0.0, 0.0), (_HELD_S < _HALF_S, _HELD_S), else_=_HALF_S)


def _exposed(seconds: Any) -> dict[str, Any]:
    """Both sums of seconds with these added. A row that is not running, or that an older version claimed, gets none."""
    return {
        "exposed_s": c.exposed_s + sa.case((c.seen_at > 0.0, seconds), else_=0.0),
        "alone_s": c.alone_s + sa.case((sa.and_(c.seen_at > 0.0, c.alone), seconds), else_=0.0),
    }


SEEN = {**_exposed(_HELD_S), "seen_at": _NOW}
"""The worker renewed its lease."""
_LET_GO = {"alone": False, "seen_at": 0.0}
HANDED_BACK = {**_exposed(_HELD_S), **_LET_GO}
"""The worker gave the job back by itself."""
CRASHED = {
    **_exposed(_LOST_S),
    **_LET_GO,
    "crashes": c.crashes + sa.case((_RUNNING, 1), else_=0),
    "crashes_alone": c.crashes_alone + sa.case((sa.and_(_RUNNING, c.alone), 1), else_=0),
}
"""The job is taken away from a worker that seems to be dead, if one has it."""
FORGIVEN = {"crashes": 0, "crashes_alone": 0, "exposed_from": 0.0, "exposed_s": 0.0, "alone_s": 0.0, **_LET_GO}


def claimed(before: dict[str, Any]) -> dict[str, Any]:
    """A worker takes the job; `before`: what happens to the attempt that had it."""
    return {
        **before,
        "alone": sa.bindparam("by_itself", type_=sa.Boolean),
        "seen_at": _NOW,
        "exposed_from": sa.case((c.exposed_from > 0.0, c.exposed_from), else_=_NOW),
    }
