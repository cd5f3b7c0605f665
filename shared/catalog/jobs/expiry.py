"""Expiry of ended jobs and of idempotency keys, in small transactions that do not block other writers for long."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from shared.catalog.engines.database import Database, among
from shared.catalog.jobs.idempotency import forget_expired
from shared.catalog.jobs.job_rows import jobs_of
from shared.catalog.tables import ENDED, entries, jobs, now_s
from shared.domain.types import JobState

EXPIRED_AT_ONCE = 500
"""Jobs, and idempotency keys, that one transaction of the expiry deletes: few, so that other writers wait briefly."""

c = jobs.c
_NOW: Any = now_s()
_before, _after_at = sa.bindparam("before", type_=sa.Double), sa.bindparam("after_at", type_=sa.Double)
_EXPIRABLE = (
    sa.select(jobs)
    .where(
        sa.text(ENDED),
        c.updated_at < _before,
        c.updated_at >= _after_at,
        sa.or_(c.updated_at > _after_at, c.id > sa.bindparam("after_id", type_=sa.Text)),
    )
    .order_by(c.updated_at, c.id)
    .limit(EXPIRED_AT_ONCE)
)
_EXPIRE = (
    sa.delete(jobs)
    # checked again: a job that was reopened in between must stay
    .where(
        c.id.in_(sa.bindparam("ids", expanding=True)),
        c.state.in_([state.value for state in JobState if state.final]),
        c.updated_at < _before,
    )
    .returning(c.picture_key, c.mask_key)
)
Place = tuple[float, str]
"""(updated_at, id) of the last job that the expiry examined."""


def _expire(connection: sa.Connection, older_than_s: float, after: Place = (0.0, "")) -> tuple[list[str], Place | None]:
    """Delete the next ended jobs that are readable; return keys of images and masks, and the place to
    continue from, or None."""
    # a value, not an expression: PostgreSQL uses no index for a comparison with a running clock
    now = connection.execute(sa.select(_NOW)).scalar_one()
    forgotten = forget_expired(connection, now, EXPIRED_AT_ONCE)
    before = now - older_than_s
    rows = connection.execute(_EXPIRABLE, {"before": before, "after_at": after[0], "after_id": after[1]}).all()
    ids = [job.id for job in jobs_of(rows)]  # other rows belong to another version
    expired = connection.execute(_EXPIRE, {"ids": ids, "before": before}).all()
    keys = {row.picture_key for row in expired if row.picture_key}
    masks = {row.mask_key for row in expired if row.mask_key}  # of jobs that became no entry
    unnamed = masks | keys - among(connection, c.picture_key, keys) - among(connection, entries.c.picture_key, keys)
    more = EXPIRED_AT_ONCE in (forgotten, len(rows))
    last = (rows[-1].updated_at, rows[-1].id) if rows else after
    return sorted(unnamed), last if more else None


class Expiry:
    """Expiry of a catalog's jobs."""

    _database: Database

    async def expire(self, older_than_s: float) -> list[str]:
        """Delete final jobs that this version can read, a limited number per transaction.

        Return the keys of images and masks that no job and no entry names any more. The orphan collector finds the
        blobs of an interrupted expiry.
        """
        found: list[str] = []
        after: Place | None = (0.0, "")
        while after is not None:
            keys, after = await self._database.write(_expire, older_than_s, after)
            found += keys
        return found
