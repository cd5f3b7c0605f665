"""A caller's key names one job for as long as it lives, and only with one body (design §8)."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from shared.catalog.tables import idempotency_keys, now_s
from shared.errors import ConflictError

_NOW: Any = now_s()
_KEY = sa.select(idempotency_keys).where(
    idempotency_keys.c.caller == sa.bindparam("by_caller"), idempotency_keys.c.key == sa.bindparam("by_key")
)
_LIVE_KEY = _KEY.where(idempotency_keys.c.expires_at > _NOW)


_new = sqlite.insert(idempotency_keys).values(expires_at=_NOW + sa.bindparam("lifetime_s", type_=sa.Double))
_TAKE = _new.on_conflict_do_update(
    index_elements=["caller", "key"],
    set_={name: _new.excluded[name] for name in ("body_hash", "job_id", "expires_at")},
    where=idempotency_keys.c.expires_at <= _NOW,
).returning(idempotency_keys.c.job_id)


_old = idempotency_keys.alias("old")
_FORGET = sa.delete(idempotency_keys).where(
    sa.tuple_(idempotency_keys.c.caller, idempotency_keys.c.key).in_(
        sa.select(_old.c.caller, _old.c.key)
        .where(_old.c.expires_at <= sa.bindparam("now", type_=sa.Double))
        .limit(sa.bindparam("at_most", type_=sa.Integer))
    ),
    # said again: one that is taken anew meanwhile stays
    idempotency_keys.c.expires_at <= sa.bindparam("now", type_=sa.Double),
)


def take_key(connection: sa.Connection, job_id: str, caller: str, key: str, body_hash: str, lifetime_s: float) -> str:
    """Empty when the key is now this job's, else the id of the job that has it; ConflictError for another body.

    On SQLite, in a transaction with the job's row; PostgreSQL takes both at once (at_once.py).
    """
    wished = {"caller": caller, "key": key, "body_hash": body_hash, "job_id": job_id, "lifetime_s": lifetime_s}
    if connection.execute(_TAKE, wished).first() is not None:
        return ""
    return named_by(connection, caller, key, body_hash)


def named_by(connection: sa.Connection, caller: str, key: str, body_hash: str) -> str:
    """The id of the job that a key names which was found taken; ConflictError for another body."""
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
            f"idempotency-key {key!r}: tenant {caller or 'default'} has used it for another request (job {row.job_id})"
        )


def forget_expired(connection: sa.Connection, now: float, at_most: int) -> int:
    """Delete keys whose lifetime is over, `at_most` of them; return how many."""
    return connection.execute(_FORGET, {"now": now, "at_most": at_most}).rowcount
