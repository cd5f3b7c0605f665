"""Job rows: accepted once, claimed and finished by one-row compare-and-set on (state, attempt)."""

from __future__ import annotations

import builtins
import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import sqlalchemy as sa

from shared.catalog import at_once
from shared.catalog.database import Database
from shared.catalog.expiry import Expiry
from shared.catalog.exposure import CRASHED, FORGIVEN, HANDED_BACK, SEEN, claimed
from shared.catalog.idempotency import job_of_key, named_by, take_key
from shared.catalog.job_rows import job_of, jobs_of, row_of
from shared.catalog.lanes import Lanes
from shared.catalog.prepared import Prepared
from shared.catalog.sweeping import Sweeping
from shared.catalog.tables import captured, jobs, now_s
from shared.errors import NotFoundError, UnreadableRowError
from shared.types import URGENT, Job, JobState, Plan, Result, to_json
from shared.unreadable import was_reported

CHUNK = 500
"""Rows per statement where a list of keys is bound: far below every driver's limit."""

QUEUED, RUNNING, SUCCEEDED, FAILED, CANCELLED = (state.value for state in JobState)
FINAL = (SUCCEEDED, FAILED, CANCELLED)

c = jobs.c
_ID = c.id == sa.bindparam("job_id")
_MINE = sa.and_(_ID, c.state == RUNNING, c.attempt == sa.bindparam("of_attempt"))
_NOW: Any = now_s()
_ENDED = {"updated_at": _NOW, "lease_until": 0.0, "checkpoint_key": None, "checkpoint_step": 0}

_GET = Prepared(sa.select(jobs).where(_ID))
_INSERT = Prepared(sa.insert(jobs).values(created_at=_NOW, updated_at=_NOW).returning(c.created_at, c.updated_at))
_CLAIM = Prepared(
    sa.update(jobs)
    .where(_ID, sa.or_(c.state == QUEUED, sa.and_(c.state == RUNNING, c.lease_until < _NOW)))
    .values(
        state=RUNNING,
        worker=sa.bindparam("by_worker"),
        attempt=c.attempt + 1,
        **claimed(CRASHED),  # a running job's holder, whose lease ran out, counts as crashed
        lease_until=_NOW + sa.bindparam("lease_s", type_=sa.Double),
        updated_at=_NOW,
    )
    .returning(jobs)
)
_RENEW = (
    sa.update(jobs)
    .where(_MINE)
    .values(lease_until=_NOW + sa.bindparam("lease_s", type_=sa.Double), **SEEN)
)  # fmt: skip
_CHECKPOINT = (
    sa.update(jobs)
    .where(_MINE)
    .values(checkpoint_key=sa.bindparam("key"), checkpoint_step=sa.bindparam("step"), updated_at=_NOW)
)
_FINISH = (
    sa.update(jobs)
    .where(_MINE)
    .values(
        state=SUCCEEDED, error="", result=sa.bindparam("json"), picture_key=sa.bindparam("picture"), **_ENDED
    )
)  # fmt: skip
_FINISH_REPLANNED = _FINISH.values(plan=sa.bindparam("as_run"))
_ACCEPT_AT_ONCE = Prepared(at_once.ACCEPT)
_FINISH_AT_ONCE = Prepared(at_once.finishing(_FINISH))
_FINISH_REPLANNED_AT_ONCE = Prepared(at_once.finishing(_FINISH_REPLANNED))
_FINISH_FIRST, _FINISH_REPLANNED_FIRST = Prepared(_FINISH), Prepared(_FINISH_REPLANNED)
_CAPTURE = Prepared(sa.insert(captured))
_NO_LATENTS = "none:"
"""Begins what stands in place of a blob key for a job that captured nothing."""
_BACK = {"state": QUEUED, "worker": "", "lease_until": 0.0, "updated_at": _NOW}
_BACK_FROM_A_WORKER = {**_BACK, **HANDED_BACK}
_FAIL = (
    sa.update(jobs)
    .where(_MINE)
    .values(state=FAILED, error=sa.bindparam("said"), failures=c.failures + 1, **_ENDED)
)  # fmt: skip
_RETRY = (
    sa.update(jobs)
    .where(_MINE)
    .values(error=sa.bindparam("said"), failures=c.failures + 1, **_BACK_FROM_A_WORKER)
)  # fmt: skip
_RELEASE = sa.update(jobs).where(_MINE).values(**_BACK_FROM_A_WORKER)
_CANCEL = (
    sa.update(jobs).where(_ID, c.state.in_((QUEUED, RUNNING))).values(state=CANCELLED, **_ENDED).returning(jobs)
)  # fmt: skip
_STOPPED = (
    sa.update(jobs)
    .where(_ID, c.state == CANCELLED, c.attempt == sa.bindparam("of_attempt"))
    .values(result=sa.bindparam("json"))
)  # fmt: skip
_REOPEN = (
    sa.update(jobs)
    .where(_ID, c.state == FAILED)
    .values(error="", failures=0, confirmed=False, buried=False, **FORGIVEN, **_BACK)
)  # fmt: skip
_BURIED = sa.update(jobs).where(_ID, c.state == FAILED).values(buried=True)
_CONFIRM = sa.update(jobs).where(c.id.in_(sa.bindparam("ids", expanding=True))).values(confirmed=True)
_COUNT_QUEUED = sa.select(sa.func.count()).select_from(jobs).where(c.state == QUEUED)


def _accept(
    connection: sa.Connection, job: Job, idempotency_key: str, caller: str, body_hash: str, key_lifetime_s: float
) -> tuple[Job, bool]:
    if idempotency_key and connection.dialect.name == "postgresql":
        return _accept_at_once(connection, job, idempotency_key, caller, body_hash, key_lifetime_s)
    if idempotency_key:
        first = take_key(connection, job.id, caller, idempotency_key, body_hash, key_lifetime_s)
        if first:
            return _get(connection, first), False
    return _accepted(job, _INSERT.first(connection, row_of(job))), True


def _accepted(job: Job, at: Any) -> Job:
    return dataclasses.replace(job, created_at=at.created_at, updated_at=at.updated_at, confirmed=job.state.final)


def _accept_at_once(
    connection: sa.Connection, job: Job, key: str, caller: str, body_hash: str, key_lifetime_s: float
) -> tuple[Job, bool]:
    wished = {"by_caller": caller, "by_key": key, "of_body": body_hash, "lifetime_s": key_lifetime_s}
    at = _ACCEPT_AT_ONCE.first(connection, {**row_of(job), **wished})
    if at is not None:
        return _accepted(job, at), True
    return _get(connection, named_by(connection, caller, key, body_hash)), False


def _first(connection: sa.Connection, caller: str, key: str, body_hash: str) -> Job | None:
    job_id = job_of_key(connection, caller, key, body_hash)
    return _get(connection, job_id) if job_id else None


def _get(connection: sa.Connection, job_id: str) -> Job:
    row = _GET.first(connection, {"job_id": job_id})
    if row is None:
        raise NotFoundError(f"job {job_id!r}: no such job; it never existed or its result expired")
    return job_of(row)


def _list(
    connection: sa.Connection, tenant: str | None, state: JobState | None, limit: int, after: str
) -> tuple[list[Job], str]:
    query = sa.select(jobs).order_by(c.id.desc()).limit(limit + 1)
    if tenant is not None:
        query = query.where(c.tenant == tenant)
    if state is not None:
        query = query.where(c.state == state.value)
    while True:
        rows = connection.execute(query.where(c.id < after) if after else query).all()
        found, after = jobs_of(rows[:limit]), rows[limit - 1].id if len(rows) > limit else ""
        if found or not after:
            return found, after


def _set(connection: sa.Connection, statement: sa.Update, parameters: dict[str, Any]) -> bool:
    return connection.execute(statement, parameters).rowcount == 1


def _claim(connection: sa.Connection, job_id: str, worker: str, lease_s: float, alone: bool) -> Job | None:
    if was_reported(jobs.name, job_id):  # else each try would change what stays unreadable
        with suppress(NotFoundError):
            _get(connection, job_id)
    row = _CLAIM.first(connection, {"job_id": job_id, "by_worker": worker, "lease_s": lease_s, "by_itself": alone})
    try:
        return None if row is None else job_of(row)
    except UnreadableRowError:
        if connection.dialect.name == "postgresql":  # where a claim is committed by itself; SQLite rolls it back
            _set(connection, _RELEASE, {"job_id": job_id, "of_attempt": row.attempt})
        raise


def _finish(connection: sa.Connection, job_id: str, attempt: int, result: Result, plan: Plan | None) -> bool:
    parameters: dict[str, Any] = {
        "job_id": job_id,
        "of_attempt": attempt,
        "json": to_json(result).decode(),
        "picture": result.picture_key or None,
    }
    if plan is not None:
        parameters["as_run"] = to_json(plan).decode()
    # a job without latents is listed as uncached too: its entry answers exact repeats
    keys = [latent.key for latent in result.captured] or [_NO_LATENTS + job_id]
    if connection.dialect.name == "postgresql":
        statement = _FINISH_AT_ONCE if plan is None else _FINISH_REPLANNED_AT_ONCE
        return statement.first(connection, {**parameters, "keys": keys}) is not None
    if not (_FINISH_FIRST if plan is None else _FINISH_REPLANNED_FIRST).changed(connection, parameters):
        return False
    _CAPTURE.many(connection, [{"key": key, "job_id": job_id} for key in keys])
    return True


def _cancel(connection: sa.Connection, job_id: str) -> Job:
    row = connection.execute(_CANCEL, {"job_id": job_id}).first()
    return _get(connection, job_id) if row is None else job_of(row)


def _confirm(connection: sa.Connection, job_ids: Sequence[str]) -> None:
    for at in range(0, len(job_ids), CHUNK):
        connection.execute(_CONFIRM, {"ids": list(job_ids[at : at + CHUNK])})


def _queued(connection: sa.Connection, lane: str | None) -> int:
    query = _COUNT_QUEUED if lane is None else _COUNT_QUEUED.where(c.lane == lane)
    return int(connection.execute(query).scalar_one())


def _position(connection: sa.Connection, job_id: str) -> int:
    row = connection.execute(sa.select(c.state, c.lane, c.priority).where(_ID), {"job_id": job_id}).first()
    if row is None or row.state != QUEUED:
        return 0
    urgent, before = c.priority >= URGENT, c.id < job_id
    ahead = sa.and_(urgent, before) if row.priority >= URGENT else sa.or_(urgent, before)
    query = sa.select(sa.func.count()).select_from(jobs).where(c.state == QUEUED, c.lane == row.lane, ahead)
    return int(connection.execute(query).scalar_one())


def _to_cache(connection: sa.Connection, limit: int, after: str) -> list[str]:
    query = sa.select(captured.c.job_id).distinct().where(captured.c.job_id > after)
    query = query.order_by(captured.c.job_id).limit(limit)
    return list(connection.execute(query).scalars())


def _drop_captured(connection: sa.Connection, job_ids: Sequence[str]) -> list[str]:
    keys: list[str] = []
    for at in range(0, len(job_ids), CHUNK):
        chunk = sa.delete(captured).where(captured.c.job_id.in_(job_ids[at : at + CHUNK])).returning(captured.c.key)
        keys.extend(connection.execute(chunk).scalars())
    return sorted(key for key in keys if not key.startswith(_NO_LATENTS))


class Jobs(Expiry, Lanes, Sweeping):
    """The jobs of a catalog. `attempt` is a fencing token: it only grows, and only the newest may write."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def accept(
        self,
        job: Job,
        *,
        idempotency_key: str = "",
        caller: str = "",
        body_hash: str = "",
        key_lifetime_s: float = 86_400.0,
        durable: bool = True,
    ) -> tuple[Job, bool]:
        """(the job, whether it is new): the first job of a key that the caller used before; ConflictError when that
        one had another body.

        `durable` False leaves the sync to the next durable write of an embedded catalog, which a job's end is: enough
        where nobody is told of the job before that.
        """
        lazily = self._database.process_local and not durable
        write = self._database.write_row if lazily else self._database.write_statement
        return await write(_accept, job, idempotency_key, caller, body_hash, key_lifetime_s)

    async def first(self, caller: str, idempotency_key: str, body_hash: str) -> Job | None:
        """The job that this caller's key already names; ConflictError when that one had another body."""
        return await self._database.read_row(_first, caller, idempotency_key, body_hash)

    async def get(self, job_id: str) -> Job:
        return await self._database.read_row(_get, job_id)

    async def list(
        self, *, tenant: str | None = None, state: JobState | None = None, limit: int = 50, after: str = ""
    ) -> tuple[builtins.list[Job], str]:
        """Newest first, and the token of the next page (empty at the end); without the rows that only another version
        can read, so a page may be short."""
        return await self._database.read(_list, tenant, state, limit, after)

    async def confirm(self, job_ids: Sequence[str]) -> None:
        """The broker has their tasks."""
        # if this is lost the sweeper sends them again, and the duplicate loses the claim
        await self._database.write_lazily(_confirm, job_ids)

    async def claim(self, job_id: str, worker: str, lease_s: float, alone: bool = False) -> Job | None:
        """The job, now running under the next attempt; None when it is final or another's lease is alive.
        UnreadableRowError, and nothing claimed, when only another version can read its row.

        alone: the worker's process holds no other job until the attempt ends.
        """
        # a power cut that undoes a claim on SQLite took the worker with it; a server must never give an attempt twice
        write = self._database.write_row if self._database.process_local else self._database.write_statement
        return await write(_claim, job_id, worker, lease_s, alone)

    async def renew(self, job_id: str, attempt: int, lease_s: float) -> bool:
        """False when the job is no longer this attempt's: stop drawing."""
        parameters = {"job_id": job_id, "of_attempt": attempt, "lease_s": lease_s}
        # undone by a power cut, the lease only ends earlier
        return await self._database.write_lazily(_set, _RENEW, parameters)

    async def checkpoint(self, job_id: str, attempt: int, key: str, step: int) -> bool:
        """Names a checkpoint whose blob is already stored."""
        parameters = {"job_id": job_id, "of_attempt": attempt, "key": key, "step": step}
        return await self._database.write_lazily(_set, _CHECKPOINT, parameters)

    async def finish(self, job_id: str, attempt: int, result: Result, plan: Plan | None = None) -> bool:
        """Running → succeeded, with the plan as it was really run; False when this attempt lost."""
        return await self._database.write_statement(_finish, job_id, attempt, result, plan)

    async def fail(self, job_id: str, attempt: int, error: str, *, final: bool) -> bool:
        """Running → failed, or back to queued when not `final`; counts a failure."""
        parameters = {"job_id": job_id, "of_attempt": attempt, "said": error}
        return await self._database.write(_set, _FAIL if final else _RETRY, parameters)

    async def buried(self, job_id: str) -> None:
        """The failed job's task lies among the dead letters; `reopen` takes that back."""
        # if this is lost a late duplicate is buried beside it
        await self._database.write_lazily(_set, _BURIED, {"job_id": job_id})

    async def release(self, job_id: str, attempt: int) -> bool:
        """Handed back undone: running → queued, neither a failure nor a crash."""
        return await self._database.write(_set, _RELEASE, {"job_id": job_id, "of_attempt": attempt})

    async def cancel(self, job_id: str) -> Job:
        """The row afterwards: cancelled, or as it already had ended."""
        return await self._database.write(_cancel, job_id)

    async def stopped(self, job_id: str, attempt: int, result: Result) -> bool:
        """What a cancelled job had cost when its worker let go of it: a result without a picture; False when it is
        not cancelled, or was last another attempt's."""
        parameters = {"job_id": job_id, "of_attempt": attempt, "json": to_json(result).decode()}
        return await self._database.write_lazily(_set, _STOPPED, parameters)

    async def reopen(self, job_id: str) -> bool:
        """A failed job is queued again with nothing held against it; False when it is in another state. Its task is to
        be sent, and `confirm` called then."""
        return await self._database.write(_set, _REOPEN, {"job_id": job_id})

    async def queued(self, lane: str | None = None) -> int:
        return await self._database.read(_queued, lane)

    async def position(self, job_id: str) -> int:
        """Queued jobs that its lane serves before it; 0 when it is not queued."""
        return await self._database.read(_position, job_id)

    async def to_cache(self, limit: int = 100, after: str = "") -> builtins.list[str]:
        """Ids of succeeded jobs that are not settled yet: neither an entry of the cache nor refused; oldest first,
        beginning behind the id `after`."""
        return await self._database.read(_to_cache, limit, after)

    async def drop_captured(self, job_ids: Sequence[str]) -> builtins.list[str]:
        """These jobs' latents will not be cached; their blob keys, for deletion."""
        return await self._database.write_lazily(_drop_captured, job_ids)
