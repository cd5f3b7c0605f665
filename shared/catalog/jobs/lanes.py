"""Jobs that wait in a lane, or change their lane together with their plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from shared.catalog.engines.database import Database
from shared.catalog.jobs.checks import OF_CLIENTS
from shared.catalog.jobs.exposure import HANDED_BACK
from shared.catalog.jobs.job_rows import jobs_of, update_one
from shared.catalog.tables import ENDED, jobs, now_s
from shared.domain.types import URGENT, Job, JobState, Plan, to_json

LOOKED_AT = 10
"""Rows per read when looking for a lane's oldest job."""

QUEUED, RUNNING = JobState.QUEUED.value, JobState.RUNNING.value
c = jobs.c
_OF = sa.and_(c.id == sa.bindparam("job_id"), c.attempt == sa.bindparam("of_attempt"))
_NOW: Any = now_s()
_THERE = {
    "lane": sa.bindparam("to_lane"),
    "plan": sa.bindparam("as_planned"),
    "confirmed": False,
    "updated_at": _NOW,
}
_REROUTE = sa.update(jobs).where(_OF, c.state == QUEUED).values(**_THERE)
_MOVE = (
    sa.update(jobs)
    .where(_OF, c.state == RUNNING)
    .values(state=QUEUED, worker="", lease_until=0.0, **HANDED_BACK, **_THERE)
)
_WAITING = (
    sa.select(jobs)
    .where(c.state == QUEUED, c.lane == sa.bindparam("in_lane"), c.id > sa.bindparam("behind"))
    .order_by(c.id)
    .limit(sa.bindparam("most"))
)

_LANES = sa.select(c.lane).where(c.state == QUEUED).distinct()
_COUNT_QUEUED = sa.select(sa.func.count()).select_from(jobs).where(c.state == QUEUED)
_QUEUED_BY_TENANT = sa.select(c.tenant, sa.func.count()).where(c.state == QUEUED).group_by(c.tenant)
_TAKEN = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(c.pixel_steps), 0)).where(
    c.state.in_((QUEUED, RUNNING)), c.tenant == sa.bindparam("of_tenant")
)
_OTHERS = (
    sa.select(c.tenant, sa.func.count().label("jobs"))
    .where(c.state == QUEUED, c.lane == sa.bindparam("in_lane"), c.tenant != sa.bindparam("of_tenant"), OF_CLIENTS)
    .group_by(c.tenant)
)
_PLACE = sa.select(c.state, c.lane, c.priority, c.tenant).where(c.id == sa.bindparam("job_id"))
_OLDEST = _WAITING.where(OF_CLIENTS).add_columns((_NOW - c.created_at).label("waits_s"))


_BACKLOG = (
    sa.select(
        c.tenant,
        sa.func.count().filter(c.state == QUEUED).label("queued"),
        sa.func.coalesce(sa.func.sum(c.standalone_s).filter(c.state == QUEUED), 0.0).label("queued_s"),
        sa.func.count(c.standalone_s).filter(c.state == QUEUED).label("known"),
        sa.func.count().filter(c.state == RUNNING).label("running"),
    )
    .select_from(jobs)
    .where(c.state.in_((QUEUED, RUNNING)), c.lane == sa.bindparam("in_lane"))
    .group_by(c.tenant)
)

_IN_TIME = c.updated_at <= c.created_at + c.deadline_s
_DEADLINES = (
    sa.select(
        sa.func.count().label("ended"),
        sa.func.count().filter(c.state == JobState.SUCCEEDED.value, _IN_TIME).label("met"),
    )
    .select_from(jobs)
    .where(
        sa.text(ENDED),
        c.updated_at > _NOW - sa.bindparam("since_s", type_=sa.Double),
        c.deadline_s.is_not(None),
        sa.not_(sa.and_(c.state == JobState.CANCELLED.value, _IN_TIME)),
    )
)


def _pages(connection: sa.Connection, query: sa.Select[Any], lane: str, limit: int, after: str) -> Iterator[list[Any]]:
    while rows := connection.execute(query, {"in_lane": lane, "most": limit, "behind": after}).all():
        yield list(rows)
        after = rows[-1].id


def _waiting(connection: sa.Connection, lane: str, limit: int, after: str) -> list[Job]:
    return next((found for rows in _pages(connection, _WAITING, lane, limit, after) if (found := jobs_of(rows))), [])


def _waits(connection: sa.Connection, lanes: Sequence[str]) -> dict[str, float]:
    waits = {}
    for lane in lanes:
        rows = (row for page in _pages(connection, _OLDEST, lane, LOOKED_AT, "") for row in page)
        if (seconds := next((row.waits_s for row in rows if jobs_of([row])), None)) is not None:
            waits[lane] = max(float(seconds), 0.0)
    return waits


def _lanes(connection: sa.Connection) -> set[str]:
    return set(connection.execute(_LANES).scalars())


def _queued(connection: sa.Connection, lane: str | None) -> int:
    query = _COUNT_QUEUED if lane is None else _COUNT_QUEUED.where(c.lane == lane)
    return int(connection.execute(query).scalar_one())


def _queued_by_tenant(connection: sa.Connection) -> dict[str, int]:
    return {tenant: int(count) for tenant, count in connection.execute(_QUEUED_BY_TENANT)}


def _taken(connection: sa.Connection, tenant: str) -> Taken:
    jobs, pixel_steps = connection.execute(_TAKEN, {"of_tenant": tenant}).one()
    return Taken(int(jobs), int(pixel_steps))


def _backlogs(connection: sa.Connection, lane: str) -> dict[str, Backlog]:
    rows = connection.execute(_BACKLOG, {"in_lane": lane}).all()
    known = sum(row.known for row in rows)
    each_s = sum(row.queued_s for row in rows) / known if known else 0.0
    return {
        row.tenant: Backlog(row.queued, float(row.queued_s) + (row.queued - row.known) * each_s, row.running)
        for row in rows
    }


def _deadlines(connection: sa.Connection, since_s: float) -> tuple[int, int]:
    row = connection.execute(_DEADLINES, {"since_s": since_s}).one()
    return int(row.ended), int(row.met)


def _position(connection: sa.Connection, job_id: str) -> int:
    row = connection.execute(_PLACE, {"job_id": job_id}).first()
    if row is None or row.state != QUEUED:
        return 0
    urgent, before = c.priority >= URGENT, c.id < job_id
    ahead = sa.and_(urgent, before) if row.priority >= URGENT else sa.or_(urgent, before)
    own = int(connection.execute(_COUNT_QUEUED.where(c.lane == row.lane, c.tenant == row.tenant, ahead)).scalar_one())
    others = connection.execute(_OTHERS, {"in_lane": row.lane, "of_tenant": row.tenant})
    return own + sum(min(int(other.jobs), own + 1) for other in others)


@dataclass(frozen=True, slots=True)
class Taken:
    """Jobs of a tenant that wait or run, and their frames × pixels × steps."""

    jobs: int = 0
    pixel_steps: int = 0


@dataclass(frozen=True, slots=True)
class Backlog:
    """Jobs of a lane that a new job finds."""

    queued: int = 0
    queued_s: float = 0.0
    """Predicted seconds of the queued jobs, each alone; jobs without a prediction count as the mean of the others."""
    running: int = 0


def found_by(tenant: str, of_each: Mapping[str, Backlog]) -> Backlog:
    """Return what a new job of the tenant finds: its own jobs, and of each other tenant as much as fair shares serve
    before it (docs/adr/0029-fair-shares.md), which is a job more than it has itself."""
    own = of_each.get(tenant, Backlog())
    queued, queued_s = own.queued, own.queued_s
    for name, other in of_each.items():
        if name != tenant and other.queued:
            jobs = min(other.queued, own.queued + 1)
            queued, queued_s = queued + jobs, queued_s + other.queued_s * jobs / other.queued
    return Backlog(queued, queued_s, sum(one.running for one in of_each.values()))


class Lanes:
    """The lanes of the catalog's jobs: waiting jobs, and moves between lanes."""

    _database: Database

    async def waiting(self, lane: str, limit: int = 100, after: str = "") -> list[Job]:
        """Return queued jobs of this lane, oldest first, after the id `after`; empty only if none is left."""
        return await self._database.read(_waiting, lane, limit, after)

    async def lanes(self) -> set[str]:
        """Return lanes with queued jobs, including lanes of models that are no longer served."""
        return await self._database.read(_lanes)

    async def waits(self, lanes: Sequence[str]) -> dict[str, float]:
        """Return lane → seconds since its oldest queued job was accepted; lanes without queued jobs are left out.

        A job that only another version can read does not count, because no worker of this version can run it.
        """
        return await self._database.read(_waits, lanes)

    async def queued(self, lane: str | None = None) -> int:
        return await self._database.read(_queued, lane)

    async def queued_by_tenant(self) -> dict[str, int]:
        return await self._database.read(_queued_by_tenant)

    async def taken(self, tenant: str) -> Taken:
        return await self._database.read(_taken, tenant)

    async def backlogs(self, lane: str) -> dict[str, Backlog]:
        """Return the jobs of the lane now, by tenant; see `found_by`."""
        return await self._database.read(_backlogs, lane)

    async def deadlines(self, since_s: float) -> tuple[int, int]:
        """Return the jobs with a deadline that ended within the last `since_s` seconds, and those that met it. Jobs
        that were cancelled before their deadline do not count."""
        return await self._database.read(_deadlines, since_s)

    async def position(self, job_id: str) -> int:
        """Return the number of queued jobs that the lane serves before this job, with fair shares of the tenants; 0 if
        the job is not queued."""
        return await self._database.read(_position, job_id)

    async def reroute(self, job_id: str, attempt: int, lane: str, plan: Plan) -> bool:
        """Move a queued job to another lane with another plan; return False if the job was claimed before.

        The caller must then send the task and call `confirm`.
        """
        return await self._database.write(update_one, _REROUTE, _to(job_id, attempt, lane, plan))

    async def move(self, job_id: str, attempt: int, lane: str, plan: Plan) -> bool:
        """Hand the job back, neither failed nor crashed, to another lane; otherwise like `reroute`."""
        return await self._database.write(update_one, _MOVE, _to(job_id, attempt, lane, plan))


def _to(job_id: str, attempt: int, lane: str, plan: Plan) -> dict[str, Any]:
    return {"job_id": job_id, "of_attempt": attempt, "to_lane": lane, "as_planned": to_json(plan).decode()}
