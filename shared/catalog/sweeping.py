"""What the sweeper finds: jobs whose task must be sent again, and what counts as a crash of theirs (design §8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from shared.catalog.database import Database
from shared.catalog.job_rows import update_readable
from shared.catalog.tables import jobs, now_s
from shared.types import Job, JobState

NEVER_S = 1e12

QUEUED, RUNNING = JobState.QUEUED.value, JobState.RUNNING.value
c = jobs.c
_NOW: Any = now_s()
_CRASHED = {
    "state": QUEUED,
    "worker": "",
    "lease_until": 0.0,
    "updated_at": _NOW,
    "crashes": c.crashes + 1,
    "confirmed": False,
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
    # not confirmed either: if this sending fails as well, the next sweep tries again, however long resending waits
    .values(updated_at=_NOW, confirmed=False)
    .returning(jobs)
)
_RUNNING = sa.update(jobs).where(c.state == RUNNING).values(**_CRASHED).returning(jobs)
# whatever a bus that died with its process had been told, it has forgotten
_WAITING = sa.update(jobs).where(c.state == QUEUED).values(confirmed=False, updated_at=_NOW).returning(jobs)
_SURVIVED = (
    sa.update(jobs)
    .where(
        c.id == sa.bindparam("job_id"),
        c.state.in_((QUEUED, RUNNING)),
        c.crashes > sa.bindparam("crashes_before", type_=sa.Integer),
    )
    .values(crashes=c.crashes - 1)
)


def _in_order(found: Sequence[Job]) -> list[Job]:
    return sorted(found, key=lambda job: job.id)


def _to_requeue(connection: sa.Connection, unconfirmed_after_s: float, anyhow_after_s: float) -> list[Job]:
    after = {"after_s": unconfirmed_after_s, "anyhow_s": anyhow_after_s}
    lost = update_readable(connection, _UNCONFIRMED, after)
    return _in_order([*update_readable(connection, _EXPIRED_LEASES, {}), *lost])


def _recover(connection: sa.Connection) -> list[Job]:
    update_readable(connection, _RUNNING, {})
    return _in_order(update_readable(connection, _WAITING, {}))


def _survived(connection: sa.Connection, job_id: str, crashes_before: int) -> bool:
    return connection.execute(_SURVIVED, {"job_id": job_id, "crashes_before": crashes_before}).rowcount == 1


class Sweeping:
    """What the catalog's jobs can do about workers and brokers that died, or seemed to. A row that only another
    version can read stays as it is: queued, or running under its lease."""

    _database: Database

    async def to_requeue(self, *, unconfirmed_after_s: float, anyhow_after_s: float = NEVER_S) -> list[Job]:
        """Jobs whose task must be sent again: never confirmed, or running under a lease that ran out (now queued
        again, crashes + 1), or waiting for `anyhow_after_s` since they were last sent, whose task a broker may have
        lost or buried. Only one caller gets each; call `confirm` when sent."""
        return await self._database.write(_to_requeue, unconfirmed_after_s, anyhow_after_s)

    async def recover(self) -> list[Job]:
        """Embedded start: every running job back to queued (crashes + 1); all queued jobs, oldest first."""
        return await self._database.write(_recover)

    async def survived(self, job_id: str, crashes_before: int) -> bool:
        """A worker that was taken for dead lives: the crash that was counted since its claim, which saw
        `crashes_before`, was none. To be said once for an attempt; False when nothing was counted, or the job has
        ended."""
        return await self._database.write(_survived, job_id, crashes_before)
