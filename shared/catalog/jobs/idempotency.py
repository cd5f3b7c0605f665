"""Idempotency keys: a caller's live key names one job with one body (docs/architecture.md, Delivery rules)."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from shared.catalog.engines.prepared import Prepared
from shared.catalog.jobs.job_rows import row_of
from shared.catalog.tables import idempotency_keys, insert, jobs, now_s
from shared.domain.errors import ConflictError
from shared.domain.types import Job

_NOW: Any = now_s()
_KEY = sa.select(idempotency_keys).where(
    idempotency_keys.c.caller == sa.bindparam("by_caller"), idempotency_keys.c.key == sa.bindparam("by_key")
)
_LIVE_KEY = Prepared(_KEY.where(idempotency_keys.c.expires_at > _NOW))

_new = insert(idempotency_keys).values(
    caller=sa.bindparam("by_caller"),
    key=sa.bindparam("by_key"),
    body_hash=sa.bindparam("of_body"),
    job_id=sa.bindparam("id"),
    expires_at=_NOW + sa.bindparam("lifetime_s", type_=sa.Double),
)
_TAKE = _new.on_conflict_do_update(
    index_elements=["caller", "key"],
    set_={name: _new.excluded[name] for name in ("body_hash", "job_id", "expires_at")},
    where=idempotency_keys.c.expires_at <= _NOW,
).returning(idempotency_keys.c.job_id)
_TAKE_ALONE = Prepared(_TAKE)
_GIVEN = [one for one in jobs.c if one.name not in ("created_at", "updated_at") and one.server_default is None]
"""Columns that `job_rows.row_of` sets for a new job."""
_ACCEPT = Prepared(
    sa.insert(jobs)
    .from_select(
        [*(column.name for column in _GIVEN), "created_at", "updated_at"],
        sa.select(*(sa.bindparam(column.name, type_=column.type) for column in _GIVEN), _NOW, _NOW).select_from(
            _TAKE.cte("taken")
        ),
    )
    .returning(jobs.c.created_at, jobs.c.updated_at)
)
"""Insert the key and its job, or neither, in one PostgreSQL statement.

This takes one round trip instead of four (BEGIN, both rows, COMMIT). Two replicas with the same key conflict on the
key's row: the second waits, then finds the key taken.
"""
_INSERT = Prepared(
    sa.insert(jobs).values(created_at=_NOW, updated_at=_NOW).returning(jobs.c.created_at, jobs.c.updated_at)
)


_old = idempotency_keys.alias("old")
_FORGET = sa.delete(idempotency_keys).where(
    sa.tuple_(idempotency_keys.c.caller, idempotency_keys.c.key).in_(
        sa.select(_old.c.caller, _old.c.key)
        .where(_old.c.expires_at <= sa.bindparam("now", type_=sa.Double))
        .limit(sa.bindparam("at_most", type_=sa.Integer))
    ),
    # checked again: a key that was taken anew in between must stay
    idempotency_keys.c.expires_at <= sa.bindparam("now", type_=sa.Double),
)


def insert_job(connection: sa.Connection, job: Job, caller: str, key: str, body_hash: str, lifetime_s: float) -> Any:
    """Insert the job's row and take its key (if not empty) in one transaction; return the row's two times.

    Return None, and write nothing, if another job has the key.
    """
    row = row_of(job)
    if not key:
        return _INSERT.first(connection, row)
    wished = {"by_caller": caller, "by_key": key, "of_body": body_hash, "lifetime_s": lifetime_s}
    if connection.dialect.name == "postgresql":
        return _ACCEPT.first(connection, {**row, **wished})
    # SQLite has no data-changing WITH, and needs none: it has no round trips
    taken = _TAKE_ALONE.first(connection, {**wished, "id": job.id})
    return None if taken is None else _INSERT.first(connection, row)


def named_by(connection: sa.Connection, caller: str, key: str, body_hash: str) -> str:
    """Return the id of the job that a taken key names; raise ConflictError for another body."""
    row = connection.execute(_KEY, {"by_caller": caller, "by_key": key}).one()
    _same_body(row, caller, key, body_hash)
    return str(row.job_id)


def job_of_key(connection: sa.Connection, caller: str, key: str, body_hash: str) -> str:
    """Return the id of the job that a live key names, or an empty string; raise ConflictError for another body."""
    row = _LIVE_KEY.first(connection, {"by_caller": caller, "by_key": key})
    if row is None:
        return ""
    _same_body(row, caller, key, body_hash)
    return str(row.job_id)


def _same_body(row: Any, caller: str, key: str, body_hash: str) -> None:
    if row.body_hash != body_hash:
        raise ConflictError(
            f"idempotency-key {key!r}: tenant {caller or 'default'} used this key for another request "
            f"(job {row.job_id}); send a new key with a new request"
        )


def forget_expired(connection: sa.Connection, now: float, at_most: int) -> int:
    """Delete at most `at_most` keys whose lifetime is over; return how many."""
    return connection.execute(_FORGET, {"now": now, "at_most": at_most}).rowcount
