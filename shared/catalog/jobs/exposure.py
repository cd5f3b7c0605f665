"""Columns for how long workers held a job and how often they crashed with it; claims and sweeps set them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from shared.catalog.tables import jobs, now_s
from shared.domain.types import JobState

RENEWALS = 3
"""Renewals per lease duration, so that a lease survives a catalog that is briefly unreachable."""

c = jobs.c
_NOW: Any = now_s()
_RUNNING: Any = c.state == JobState.RUNNING.value
_HELD_S: Any = _NOW - c.seen_at
_HALF_S: Any = (c.lease_until - c.seen_at) / (2.0 * RENEWALS)
# on average a worker dies half-way between two renewals; the sweeper only sees the expired lease
_LOST_S: Any = sa.case((_HALF_S <= 0.0, 0.0), (_HELD_S < _HALF_S, _HELD_S), else_=_HALF_S)


def _exposed(seconds: Any) -> dict[str, Any]:
    """Return both sums increased by `seconds`, unchanged if the job is not running or an older version claimed it."""
    return {
        "exposed_s": c.exposed_s + sa.case((c.seen_at > 0.0, seconds), else_=0.0),
        "alone_s": c.alone_s + sa.case((sa.and_(c.seen_at > 0.0, c.alone), seconds), else_=0.0),
    }


SEEN = {**_exposed(_HELD_S), "seen_at": _NOW}
"""Columns when the worker renewed its lease."""
_LET_GO = {"alone": False, "seen_at": 0.0}
HANDED_BACK = {**_exposed(_HELD_S), **_LET_GO}
"""Columns when the worker handed the job back by itself."""
CRASHED = {
    **_exposed(_LOST_S),
    **_LET_GO,
    "crashes": c.crashes + sa.case((_RUNNING, 1), else_=0),
    "crashes_alone": c.crashes_alone + sa.case((sa.and_(_RUNNING, c.alone), 1), else_=0),
}
"""Columns when the job is taken from its worker, if any, because the worker seems to be dead."""
FORGIVEN = {"crashes": 0, "crashes_alone": 0, "exposed_from": 0.0, "exposed_s": 0.0, "alone_s": 0.0, **_LET_GO}


def claimed(before: dict[str, Any]) -> dict[str, Any]:
    """Return the columns for a claim; `before` has the columns that end the previous attempt."""
    return {
        **before,
        "alone": sa.bindparam("by_itself", type_=sa.Boolean),
        "seen_at": _NOW,
        "exposed_from": sa.case((c.exposed_from > 0.0, c.exposed_from), else_=_NOW),
    }
