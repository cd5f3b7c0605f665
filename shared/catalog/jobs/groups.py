"""Jobs of one request for several images: all accepted in one transaction, under one idempotency key."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import sqlalchemy as sa

from shared.catalog.engines.database import Database
from shared.catalog.jobs.idempotency import insert_job, job_of_key, named_by
from shared.catalog.jobs.job_rows import job_of
from shared.catalog.tables import idempotency_keys, jobs
from shared.domain.errors import NotFoundError
from shared.domain.types import Job

k = idempotency_keys.c
_OTHERS = sa.and_(k.caller == sa.bindparam("by_caller"), k.key.in_(sa.bindparam("by_keys", expanding=True)))
_FREE = sa.delete(idempotency_keys).where(_OTHERS)
_NAMED = sa.select(k.key, jobs).join(jobs, jobs.c.id == k.job_id).where(_OTHERS)


def _keys(key: str, count: int) -> list[str]:
    """Return the keys of a request's images: the caller's own, and others that no caller can send, with a space."""
    return [key, *(f"{key} {number}" for number in range(2, count + 1))] if key else [""] * count


def _accept_all(
    connection: sa.Connection, wanted: Sequence[Job], caller: str, key: str, body_hash: str, lifetime_s: float
) -> tuple[list[Job], bool]:
    keys, accepted = _keys(key, len(wanted)), list[Job]()
    for job, own in zip(wanted, keys, strict=True):
        at = insert_job(connection, job, caller, own, body_hash, lifetime_s)
        if at is None:  # the first key alone decides: it locks out other requests until this transaction ends
            return _all_of(connection, named_by(connection, caller, key, body_hash), caller, keys), False
        if key and not accepted:  # keys of an earlier request whose first key has expired
            connection.execute(_FREE, {"by_caller": caller, "by_keys": keys[1:]})
        times = {"created_at": at.created_at, "updated_at": at.updated_at}
        accepted.append(dataclasses.replace(job, **times, confirmed=job.state.final))
    return accepted, True


def _first_all(connection: sa.Connection, caller: str, key: str, body_hash: str, count: int) -> list[Job]:
    first = job_of_key(connection, caller, key, body_hash)
    return _all_of(connection, first, caller, _keys(key, count)) if first else []


def _all_of(connection: sa.Connection, first: str, caller: str, keys: Sequence[str]) -> list[Job]:
    found = {row.key: row for row in connection.execute(_NAMED, {"by_caller": caller, "by_keys": keys})}
    if gone := [number for number, key in enumerate(keys, 1) if key not in found]:
        said = f"image {gone[0]} of {len(keys)} of this request expired (the first job is {first})"
        raise NotFoundError(f"{said}; send the request again under a new idempotency key")
    return [job_of(found[key]) for key in keys]


class Groups:
    """Acceptance of several jobs at once."""

    _database: Database

    async def accept_all(
        self,
        wanted: Sequence[Job],
        *,
        idempotency_key: str = "",
        caller: str = "",
        body_hash: str = "",
        key_lifetime_s: float = 86_400.0,
        durable: bool = True,
    ) -> tuple[list[Job], bool]:
        """Insert all jobs or none; return (jobs, True), or (first jobs, False) for a key that this caller used before.

        Arguments and errors are those of `Jobs.accept`.
        """
        key = (caller, idempotency_key, body_hash)
        durable = durable or not self._database.process_local  # a server may lose a lazy write whose tasks were sent
        return await self._database.write(_accept_all, wanted, *key, key_lifetime_s, durable=durable)

    async def first_all(self, caller: str, idempotency_key: str, body_hash: str, count: int = 1) -> list[Job]:
        """Return the `count` jobs that this caller's key already names, or none; raise ConflictError for another
        body."""
        return await self._database.read(_first_all, caller, idempotency_key, body_hash, count, row=True)
