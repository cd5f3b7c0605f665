"""A caller's key names one job for as long as it lives, and only with one body (design §8)."""

from __future__ import annotations

from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from shared.catalog.tables import idempotency_keys, now_s
from shared.errors import ConflictError

_NOW: Any = now_s()
_KEY = sa.select(idempotency_keys).where(
    idempotency_keys.c.caller == sa.bindparam("by_caller"), idempotency_keys.c.key == sa.bindparam("by_key")
)
_LIVE_KEY = _KEY.where(idempotency_keys.c.expires_at > _NOW)


@cache
def _taking(dialect: str) -> Any:
    """One statement, so that two replicas with the same key meet on the row: the second waits, then finds it taken."""
    insert: Any = postgresql.insert if dialect == "postgresql" else sqlite.insert
    statement = insert(idempotency_keys).values(expires_at=_NOW + sa.bindparam("lifetime_s", type_=sa.Double))
    new = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=["caller", "key"],
        set_={"body_hash": new.body_hash, "job_id": new.job_id, "expires_at": new.expires_at},
        where=idempotency_keys.c.expires_at <= _NOW,
    ).returning(idempotency_keys.c.job_id)


def take_key(connection: sa.Connection, job_id: str, caller: str, key: str, body_hash: str, lifetime_s: float) -> str:
    """Empty when the key is now this job's, else the id of the job that has it; ConflictError for another body."""
    wished = {"caller": caller, "key": key, "body_hash": body_hash, "job_id": job_id, "lifetime_s": lifetime_s}
    if connection.execute(_taking(connection.dialect.name), wished).first() is not None:
        return ""
    row = connection.execute(_KEY, {"by_caller": caller, "by_key": key}).one()
    _same_body(row, caller, key, body_hash)
    return str(row.job_id)


def job_of_key(connection: sa.Connection, caller: str, key: str, body_hash: str) -> str:
    """The id of the job that a live key names, empty for none; ConflictError for another body."""
    row = connection.execute(_LIVE_KEY, {"by_caller": caller, "by_key": key}).first()
    if row is None:
        return ""
    _same_body(row, caller, key, body_hash)
    return str(row.job_id)


def _same_body(row: Any, caller: str, key: str, body_hash: str) -> None:
    if row.body_hash != body_hash:
        raise ConflictError(
            f"idempotency-key {key!r}: {caller or 'this caller'} used it for another request (job {row.job_id})"
        )


def forget_expired(connection: sa.Connection) -> None:
    connection.execute(sa.delete(idempotency_keys).where(idempotency_keys.c.expires_at <= _NOW))
