"""The next waiting jobs of each tenant in a lane, and their claim by a worker that received the task of another job.

Each task of a job that was never claimed may be exchanged: its worker takes the next such job of the lane. So there are
at least as many exchangeable tasks as such jobs (docs/delivery.md, Order across a lane).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

import sqlalchemy as sa

from shared.catalog.engines.database import Database
from shared.catalog.engines.prepared import Prepared
from shared.catalog.jobs.exposure import CRASHED, HANDED_BACK, claimed
from shared.catalog.jobs.job_rows import job_of, update_one
from shared.catalog.tables import jobs, now_s
from shared.domain.errors import UnreadableRowError
from shared.domain.types import URGENT, Job, JobState
from shared.domain.urgency import PATIENCE, UNKNOWN_AGED_S

QUEUED, RUNNING = JobState.QUEUED.value, JobState.RUNNING.value
c = jobs.c
_NOW: Any = now_s()
_NEW = sa.and_(c.state == QUEUED, c.attempt == 0, c.lane == sa.bindparam("in_lane"))
_ONCE: Any = sa.select(_NOW).scalar_subquery()
"""The clock, read once for all rows, so that equal jobs stay equal."""
_ALONE: Any = sa.func.coalesce(c.standalone_s, 0.0)
_BATCHED: Any = sa.func.coalesce(c.batched_s, _ALONE)
_AGED_S: Any = sa.case((_ALONE > 0.0, PATIENCE * _ALONE), else_=UNKNOWN_AGED_S)
_AGED = sa.and_(c.tenant.in_(sa.bindparam("aged_first", expanding=True)), _ONCE - c.created_at > _AGED_S)
_SPARE: Any = sa.func.coalesce(c.created_at + c.deadline_s - _ONCE - _BATCHED, 0.0)


def _if(condition: Any, value: Any) -> Any:
    return sa.case((condition, value), else_=0)


# the order of shared.domain.urgency.most_urgent; an aged job has equal keys up to its id
_RANK = (
    _if(sa.not_(_AGED), 1),
    _if(sa.and_(sa.not_(_AGED), _SPARE < 0.0), 1),
    _if(sa.not_(_AGED), -c.priority),
    _if(sa.and_(sa.not_(_AGED), c.deadline_s.is_(None)), 1),
    sa.case(
        (sa.or_(_AGED, _SPARE <= 0.0), 0.0),
        (_ALONE > 0.0, _SPARE / sa.func.nullif(_ALONE, 0.0)),
        else_=_SPARE,
    ),
    c.id,
)
_ARRIVED = (_if(c.priority < URGENT, 1), c.id)
MOST_TENANTS = 64
"""Tenants that one read returns in full; those with the oldest jobs come first."""


def _next_of_each(*order: Any) -> Any:
    """Select the first jobs of each tenant by this order."""
    place = sa.func.row_number().over(partition_by=c.tenant, order_by=order).label("place")
    found = sa.select(c.id, c.tenant, place).where(_NEW).subquery()
    each = sa.bindparam("each", type_=sa.Integer)
    chosen = sa.select(found.c.id, found.c.tenant).where(found.c.place <= each)
    return chosen.order_by(found.c.place, found.c.id).limit(each * MOST_TENANTS)


Order = Literal["arrival", "urgent"]
_ARRIVED_NEXT, _RANKED_NEXT = Prepared(_next_of_each(*_ARRIVED)), _next_of_each(*_RANK)
_CLAIM_NEW = Prepared(
    sa.update(jobs)
    .where(c.id == sa.bindparam("job_id"), _NEW)
    .values(
        state=RUNNING,
        worker=sa.bindparam("by_worker"),
        attempt=c.attempt + 1,
        **claimed(CRASHED),
        lease_until=_NOW + sa.bindparam("lease_s", type_=sa.Double),
        updated_at=_NOW,
        # another job may get the own task: once the job is queued again, the sweeper sends it one
        confirmed=sa.bindparam("own_task", type_=sa.Boolean),
    )
    .returning(jobs)
)
# unconfirmed: the own task may serve another job, so the sweeper of a version that reads the row sends one
_GIVE_BACK = (
    sa.update(jobs)
    .where(c.id == sa.bindparam("job_id"), c.state == RUNNING, c.attempt == 1)
    .values(state=QUEUED, worker="", lease_until=0.0, updated_at=_NOW, confirmed=False, **HANDED_BACK)
)


def _next(
    connection: sa.Connection, lane: str, each: int, order: Order, aged_first: Collection[str]
) -> dict[str, list[str]]:
    asked: dict[str, Any] = {"in_lane": lane, "each": each}
    ranked = {**asked, "aged_first": list(aged_first)}
    rows = _ARRIVED_NEXT.all(connection, asked) if order == "arrival" else connection.execute(_RANKED_NEXT, ranked)
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row.tenant, []).append(row.id)
    return found


def _claim_new(
    connection: sa.Connection, job_id: str, lane: str, worker: str, lease_s: float, own_task: bool
) -> Job | None:
    asked = {"job_id": job_id, "in_lane": lane, "by_worker": worker, "lease_s": lease_s, "by_itself": False}
    row = _CLAIM_NEW.first(connection, {**asked, "own_task": own_task})
    try:
        return None if row is None else job_of(row)
    except UnreadableRowError:
        if connection.dialect.name == "postgresql":  # PostgreSQL committed the claim already; SQLite rolls it back
            update_one(connection, _GIVE_BACK, {"job_id": job_id})
        raise


class Urgent:
    """The order of a lane's jobs that no worker has claimed yet."""

    _database: Database

    async def next_of_each(
        self, lane: str, each: int, order: Order, aged_first: Collection[str] = ()
    ) -> dict[str, list[str]]:
        """Return tenant → ids of its next jobs in the lane among those never claimed, at most `each`.

        arrival: urgent priorities first, as the bus serves them; urgent: as `urgency.most_urgent`, with `aged_first`
        for these tenants.
        """
        return await self._database.read(_next, lane, each, order, aged_first)

    async def claim_new(self, job_id: str, lane: str, worker: str, lease_s: float, *, own_task: bool) -> Job | None:
        """Return the job, now running under its first attempt; None if it was claimed or moved before.

        own_task: the worker holds this job's own task. Raises UnreadableRowError as `claim` does.
        """
        return await self._database.write(_claim_new, job_id, lane, worker, lease_s, own_task, durable=False, row=True)
