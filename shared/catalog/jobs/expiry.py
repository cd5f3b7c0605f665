"""Expiry of ended jobs and of idempotency keys, in small transactions that do not block other writers for long."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from shared.catalog.engines.database import Database, among, chunks
from shared.catalog.jobs.idempotency import forget_expired
from shared.catalog.jobs.job_rows import jobs_of
from shared.catalog.tables import ENDED, captured, entries, jobs, now_s
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
)
_OF_TENANTS = sa.select(c.tenant, sa.func.count()).group_by(c.tenant)
_NEWEST = sa.select(c.updated_at).where(sa.text(ENDED)).order_by(c.updated_at.desc()).limit(1)
_STILL = (  # checked again: a job that was reopened in between must stay
    c.id.in_(sa.bindparam("ids", expanding=True)),
    c.state.in_([state.value for state in JobState if state.final]),
    c.updated_at < _before,
)
_STILL_DUE = sa.select(c.id).where(*_STILL).with_for_update()
_EXPIRE = sa.delete(jobs).where(*_STILL).returning(c.id, c.picture_key, c.mask_key)
NO_LATENTS = "none:"
"""Prefix of the placeholder that replaces a blob key for a job that captured no latents."""
Place = tuple[float, str]
"""(updated_at, id) of the last job that the expiry examined."""


class _Due(NamedTuple):
    """Ended jobs that are old enough, and readable: other rows belong to another version."""

    ids: list[str]
    uploads: dict[str, str]
    """Blob key of the image that a job began with, by job id, where no worker deleted it at the job's success."""
    before: float
    now: float
    after: Place | None
    """Place to continue from; None at the end."""


def _due(
    connection: sa.Connection, older_than_s: float, after: Place, tenant: str = "", ended_before: float = math.inf
) -> _Due:
    # a value, not an expression: PostgreSQL uses no index for a comparison with a running clock
    now = connection.execute(sa.select(_NOW)).scalar_one()
    before = min(now - older_than_s, ended_before)
    which = _EXPIRABLE.where(c.tenant == tenant) if tenant else _EXPIRABLE
    where = {"before": before, "after_at": after[0], "after_id": after[1]}
    rows = connection.execute(which.limit(EXPIRED_AT_ONCE), where).all()
    more = len(rows) == EXPIRED_AT_ONCE
    due = jobs_of(rows)
    uploads = {job.id: job.request.upload.key for job in due if job.request.upload and job.state != JobState.SUCCEEDED}
    return _Due([job.id for job in due], uploads, before, now, (rows[-1].updated_at, rows[-1].id) if more else None)


def _of_tenants(connection: sa.Connection) -> list[tuple[str, int]]:
    """Return the number of jobs of each tenant, also of those that have not ended: an index has them."""
    return [(str(tenant), int(count)) for tenant, count in connection.execute(_OF_TENANTS)]


def _end_of(connection: sa.Connection, tenant: str, place: int) -> float | None:
    """Return when the tenant's job at this place from the newest ended; None if there are fewer."""
    found = connection.execute(_NEWEST.where(c.tenant == tenant).offset(place - 1)).scalar()
    return None if found is None else float(found)


def drop_captured(connection: sa.Connection, job_ids: Sequence[str]) -> list[str]:
    """Forget the latents of these jobs, which then become no entry; return their keys."""
    keys: list[str] = []
    for some in chunks(job_ids):
        dropped = sa.delete(captured).where(captured.c.job_id.in_(some)).returning(captured.c.key)
        keys.extend(connection.execute(dropped).scalars())
    return sorted(key for key in keys if not key.startswith(NO_LATENTS))


def _expire(connection: sa.Connection, due: _Due) -> tuple[list[str], bool]:
    """Delete these jobs and expired keys; return keys of images, uploads, masks and latents, and whether more keys may
    have expired."""
    forgotten = forget_expired(connection, due.now, EXPIRED_AT_ONCE)
    given = {"ids": due.ids, "before": due.before}
    # of jobs that became no entry; their rows would go with the jobs
    latents = drop_captured(connection, list(connection.execute(_STILL_DUE, given).scalars()))
    expired = connection.execute(_EXPIRE, given).all()
    keys = {row.picture_key for row in expired if row.picture_key}
    masks = {row.mask_key for row in expired if row.mask_key}  # of jobs that became no entry
    unnamed = masks | keys - among(connection, c.picture_key, keys) - among(connection, entries.c.picture_key, keys)
    uploads = [due.uploads[row.id] for row in expired if row.id in due.uploads]
    return sorted(unnamed.union(latents, uploads)), forgotten == EXPIRED_AT_ONCE


class Expiry:
    """Expiry of a catalog's jobs."""

    _database: Database

    async def expire(self, older_than_s: float) -> list[str]:
        """Delete final jobs that this version can read, a limited number per transaction.

        Return the keys of images, uploads, masks and latents that no job and no entry names any more. The orphan
        collector finds the blobs of an interrupted expiry.
        """
        return await self._expired(older_than_s)

    async def expire_beyond(self, most_of: Callable[[str], int | None], *, older_than_s: float) -> list[str]:
        """Delete the final jobs of each tenant that ended before its `most_of` newest ones (None: no limit), and at
        least so long ago. Return keys as `expire` does."""
        found: list[str] = []
        for tenant, count in await self._database.read(_of_tenants):
            most = most_of(tenant)
            if most is None or count <= most:
                continue
            if (kept_from := await self._database.read(_end_of, tenant, most)) is not None:
                found += await self._expired(older_than_s, tenant, kept_from)
        return found

    async def _expired(self, older_than_s: float, tenant: str = "", ended_before: float = math.inf) -> list[str]:
        found: list[str] = []
        after: Place = (0.0, "")
        while True:
            # read apart: parsing these rows takes longer than deleting them, and other writers would wait
            due = await self._database.read(_due, older_than_s, after, tenant, ended_before)
            keys, more_keys = await self._database.write(_expire, due)
            found += keys
            if due.after is None and not more_keys:
                return found
            after = due.after or after
