"""Sweeping: finds jobs whose task must be sent again, and counts crashes (docs/architecture.md, Crash accounting)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from shared.catalog.engines.database import Database
from shared.catalog.jobs.exposure import CRASHED, RENEWALS
from shared.catalog.jobs.job_rows import update_one, update_readable
from shared.catalog.tables import jobs, now_s, workers
from shared.domain.types import Job, JobState

NEVER_S = 1e12

QUEUED, RUNNING = JobState.QUEUED.value, JobState.RUNNING.value
c = jobs.c
_NOW: Any = now_s()
_CRASHED = {
    "state": QUEUED,
    "worker": "",
    "lease_until": 0.0,
    "updated_at": _NOW,
    "confirmed": False,
    **CRASHED,
}
_EXPIRED_LEASES = sa.update(jobs).where(c.state == RUNNING, c.lease_until < _NOW).values(**_CRASHED).returning(jobs)
_UNCONFIRMED = (
    sa.update(jobs)
    .where(
        c.state == QUEUED,
        sa.or_(
            sa.and_(sa.not_(c.confirmed), c.updated_at < _NOW - sa.bindparam("after_s", type_=sa.Double)),
            c.updated_at < _NOW - sa.bindparam("anyhow_s", type_=sa.Double),
        ),
    )
    # unconfirmed, so that the next sweep tries again if this sending fails too, for any `anyhow_s`
    .values(updated_at=_NOW, confirmed=False)
    .returning(jobs)
)
_RUNNING = sa.update(jobs).where(c.state == RUNNING).values(**_CRASHED).returning(jobs)
# an in-process bus that died with its process has lost all its messages
_WAITING = sa.update(jobs).where(c.state == QUEUED).values(confirmed=False, updated_at=_NOW).returning(jobs)
_SURVIVED = (
    sa.update(jobs)
    .where(
        c.id == sa.bindparam("job_id"),
        c.state.in_((QUEUED, RUNNING)),
        c.crashes > sa.bindparam("crashes_before", type_=sa.Integer),
    )
    .values(
        crashes=c.crashes - 1,
        crashes_alone=c.crashes_alone
        - sa.case((c.crashes_alone > sa.bindparam("alone_before", type_=sa.Integer), 1), else_=0),
    )
)

KEPT_S = 86400.0
"""Seconds for which workers are kept after their last report; earlier work does not count."""
w = workers.c
_REPORT = (
    sa.update(workers)
    .where(w.holder == sa.bindparam("by_holder"))
    .values(
        busy_s=w.busy_s + sa.bindparam("more_s", type_=sa.Double),
        seen_at=_NOW,
        until=sa.case(
            (sa.bindparam("holds", type_=sa.Boolean), _NOW + sa.bindparam("lease_s", type_=sa.Double)), else_=0.0
        ),
    )
)
_BEGIN = sa.insert(workers).values(begun_at=_NOW, seen_at=_NOW, until=0.0, busy_s=0.0)
_OLD_WORKERS = sa.delete(workers).where(w.seen_at < _NOW - KEPT_S)
_FROM: Any = sa.bindparam("since", type_=sa.Double)
_SINCE: Any = sa.case((_FROM > _NOW - KEPT_S, _FROM), else_=_NOW - KEPT_S)
# two reports are missing, but no lease of this worker's jobs has run out yet
_SILENT: Any = sa.and_(w.until > 0.0, _NOW - w.seen_at > (w.until - w.seen_at) * (RENEWALS - 1.0) / RENEWALS)
_WITHIN_S: Any = w.seen_at - sa.case((w.begun_at > _SINCE, w.begun_at), else_=_SINCE)
_SHARE: Any = sa.case((w.seen_at > w.begun_at, _WITHIN_S / (w.seen_at - w.begun_at)), else_=1.0)
_FLEET = sa.select(
    sa.func.coalesce(sa.func.sum(sa.case((_SILENT, 1), else_=0)), 0).label("crashes"),
    sa.func.coalesce(sa.func.sum(w.busy_s * _SHARE), 0.0).label("busy_s"),
).where(w.seen_at > _SINCE)
_ALL_SILENT = sa.update(workers).where(w.until > 0.0).values(until=w.seen_at)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Totals over all workers in a period. A crash counts once, however many jobs the worker held."""

    crashes: int
    """Crashes of workers that held a job."""
    busy_s: float
    """Seconds during which workers held a job."""


def _in_order(found: Sequence[Job]) -> list[Job]:
    return sorted(found, key=lambda job: job.id)


def _to_requeue(connection: sa.Connection, unconfirmed_after_s: float, anyhow_after_s: float) -> list[Job]:
    after = {"after_s": unconfirmed_after_s, "anyhow_s": anyhow_after_s}
    lost = update_readable(connection, _UNCONFIRMED, after)
    return _in_order([*update_readable(connection, _EXPIRED_LEASES, {}), *lost])


def _recover(connection: sa.Connection) -> list[Job]:
    update_readable(connection, _RUNNING, {})
    connection.execute(_ALL_SILENT)
    return _in_order(update_readable(connection, _WAITING, {}))


def _survived(connection: sa.Connection, job_id: str, crashes_before: int, alone_before: int) -> bool:
    before = {"crashes_before": crashes_before, "alone_before": alone_before}
    return update_one(connection, _SURVIVED, {"job_id": job_id, **before})


def _report(connection: sa.Connection, holder: str, more_s: float, lease_s: float) -> None:
    said = {"by_holder": holder, "more_s": more_s, "lease_s": lease_s, "holds": lease_s > 0}
    if connection.execute(_REPORT, said).rowcount == 0:
        connection.execute(_OLD_WORKERS)
        connection.execute(_BEGIN, {"holder": holder})
        connection.execute(_REPORT, said)


def _fleet(connection: sa.Connection, since: float) -> Fleet:
    row = connection.execute(_FLEET, {"since": since}).one()
    return Fleet(int(row.crashes), float(row.busy_s))


class Sweeping:
    """Recovery of jobs whose worker or broker died, or seemed to die.

    A row that only another version can read stays unchanged: queued, or running under its lease.
    """

    _database: Database

    async def to_requeue(self, *, unconfirmed_after_s: float, anyhow_after_s: float = NEVER_S) -> list[Job]:
        """Return the jobs whose task must be sent again, each to one caller only; call `confirm` once sent.

        A job is returned in three cases. Its task was never confirmed. Or its lease ran out; the job is now queued,
        with crashes + 1. Or it has waited for `anyhow_after_s` since it was last sent, so a broker may have lost or
        dead-lettered the task.
        """
        return await self._database.write(_to_requeue, unconfirmed_after_s, anyhow_after_s)

    async def recover(self) -> list[Job]:
        """Queue all running jobs at an embedded start (crashes + 1); return all queued jobs, oldest first."""
        return await self._database.write(_recover)

    async def survived(self, job_id: str, crashes_before: int, alone_before: int = 0) -> bool:
        """Take back a crash, because the worker that seemed to be dead is alive.

        The crash was counted since the worker's claim, which saw `crashes_before` and `alone_before`. Call once per
        attempt. Return False if no crash was counted, or if the job has ended.
        """
        return await self._database.write(_survived, job_id, crashes_before, alone_before)

    async def report_worker(self, holder: str, more_s: float, lease_s: float) -> None:
        """Record that the worker is alive and held jobs for `more_s` seconds since its last report.

        Without another report within `lease_s`, the worker counts as crashed. With `lease_s` 0 the worker holds no job,
        and its end is no crash.
        """
        await self._database.write(_report, holder, more_s, lease_s, durable=False)

    async def fleet(self, since: float) -> Fleet:
        """Return crashes and busy seconds of all workers since a time (Unix seconds by the catalog's clock).

        A worker that began earlier counts with the share of its busy seconds that equals the period's share of its
        life. The period goes back at most KEPT_S.
        """
        return await self._database.read(_fleet, since)
