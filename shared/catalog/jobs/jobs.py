"""Job rows: accepted once, claimed and finished by one-row compare-and-set on (state, attempt)."""

from __future__ import annotations

import builtins
import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from shared.catalog.engines.database import Database, chunks
from shared.catalog.engines.prepared import Prepared
from shared.catalog.jobs.checks import OF_CLIENTS, CheckJobs
from shared.catalog.jobs.expiry import NO_LATENTS, Expiry, drop_captured
from shared.catalog.jobs.exposure import CRASHED, FORGIVEN, HANDED_BACK, SEEN, claimed
from shared.catalog.jobs.groups import Groups
from shared.catalog.jobs.idempotency import insert_job, named_by
from shared.catalog.jobs.job_rows import job_of, jobs_of, update_one, update_readable
from shared.catalog.jobs.lanes import Lanes
from shared.catalog.jobs.segmenting import Segmenting
from shared.catalog.jobs.sweeping import Sweeping
from shared.catalog.jobs.urgent import Urgent
from shared.catalog.tables import CLIPS, captured, jobs, now_s
from shared.domain.errors import NotFoundError, UnreadableRowError
from shared.domain.types import Job, JobState, Plan, Result, to_json
from shared.runtime.unreadable import was_reported

QUEUED, RUNNING, SUCCEEDED, FAILED, CANCELLED = (state.value for state in JobState)

c = jobs.c
_ID = c.id == sa.bindparam("job_id")
_MINE = sa.and_(_ID, c.state == RUNNING, c.attempt == sa.bindparam("of_attempt"))
_NOW: Any = now_s()
_ENDED = {"updated_at": _NOW, "lease_until": 0.0, "checkpoint_key": None, "checkpoint_step": 0}

_GET = Prepared(sa.select(jobs).where(_ID))
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
        confirmed=True,  # the worker holds the job's task
    )
    .returning(jobs)
)
_UPDATE = sa.update(jobs).where(_MINE)
_RENEW = _UPDATE.values(lease_until=_NOW + sa.bindparam("lease_s", type_=sa.Double), **SEEN)
_CHECKPOINT = _UPDATE.values(checkpoint_key=sa.bindparam("key"), checkpoint_step=sa.bindparam("step"), updated_at=_NOW)
_FINISH = _UPDATE.values(
    state=SUCCEEDED,
    error="",
    result=sa.bindparam("json"),
    plan=sa.func.coalesce(sa.bindparam("as_run", type_=sa.Text), c.plan),
    picture_key=sa.bindparam("picture"),
    **_ENDED,
).returning(c.id)
_done = _FINISH.cte("done")
_keys: Any = sa.func.unnest(sa.bindparam("keys", type_=ARRAY(sa.Text)))
_FINISH_AND_CAPTURE = Prepared(
    sa.insert(captured).from_select(["key", "job_id"], sa.select(_keys, _done.c.id)).returning(captured.c.key)
)
"""Finish a job and, if that updated its row, record its captured latents, in one PostgreSQL statement."""
_FINISH_ALONE, _CAPTURE = Prepared(_FINISH), Prepared(sa.insert(captured))
_BACK = {"state": QUEUED, "worker": "", "lease_until": 0.0, "updated_at": _NOW}
_BACK_FROM_A_WORKER = {**_BACK, **HANDED_BACK}
_FAIL = _UPDATE.values(state=FAILED, error=sa.bindparam("said"), failures=c.failures + 1, **_ENDED)
_RETRY = _UPDATE.values(error=sa.bindparam("said"), failures=c.failures + 1, **_BACK_FROM_A_WORKER)
_RELEASE = _UPDATE.values(**_BACK_FROM_A_WORKER)
_CANCEL = (
    sa.update(jobs).where(_ID, c.state.in_((QUEUED, RUNNING))).values(state=CANCELLED, **_ENDED).returning(jobs)
)  # fmt: skip
_CANCEL_STALE = (
    sa.update(jobs)
    .where(c.state == QUEUED, c.created_at < _NOW - sa.bindparam("older_s", type_=sa.Double))
    .values(state=CANCELLED, error=sa.bindparam("said"), **_ENDED)
    .returning(jobs)
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
# a late record must not undo what a claim noted: whether its worker holds the job's own task
_CONFIRM = (
    sa.update(jobs)
    .where(c.id.in_(sa.bindparam("ids", expanding=True)), c.state == QUEUED)
    .values(confirmed=True)
)  # fmt: skip


def _accept(
    connection: sa.Connection, job: Job, caller: str, key: str, body_hash: str, key_lifetime_s: float
) -> tuple[Job, bool]:
    at = insert_job(connection, job, caller, key, body_hash, key_lifetime_s)
    if at is None:
        return _get(connection, named_by(connection, caller, key, body_hash)), False
    times = {"created_at": at.created_at, "updated_at": at.updated_at}
    return dataclasses.replace(job, **times, confirmed=job.state.final), True


def _get(connection: sa.Connection, job_id: str) -> Job:
    row = _GET.first(connection, {"job_id": job_id})
    if row is None:
        raise NotFoundError(f"job {job_id!r}: no such job; it never existed or its result expired")
    return job_of(row)


def _list(
    connection: sa.Connection,
    tenant: str | None,
    subject: str | None,
    state: JobState | None,
    limit: int,
    after: str,
    clips: bool,
) -> tuple[list[Job], str]:
    query = sa.select(jobs).order_by(c.id.desc()).limit(limit + 1)
    query = query.where(OF_CLIENTS if tenant is None else c.tenant == tenant)
    if subject is not None:  # of an expression: SQLite would find clips by the subject's index, which has images too
        query = query.where((c.subject + "" if clips else c.subject) == subject)
    if state is not None:
        query = query.where(c.state == state.value)
    if clips:
        query = query.where(sa.text(CLIPS), c.state != JobState.CANCELLED.value)
    while True:
        rows = connection.execute(query.where(c.id < after) if after else query).all()
        found, after = jobs_of(rows[:limit]), rows[limit - 1].id if len(rows) > limit else ""
        if found or not after:
            return found, after


def _claim(connection: sa.Connection, job_id: str, worker: str, lease_s: float, alone: bool) -> Job | None:
    if was_reported(jobs.name, job_id):  # else each attempt changes an unreadable row
        with suppress(NotFoundError):
            _get(connection, job_id)
    row = _CLAIM.first(connection, {"job_id": job_id, "by_worker": worker, "lease_s": lease_s, "by_itself": alone})
    try:
        return None if row is None else job_of(row)
    except UnreadableRowError:
        if connection.dialect.name == "postgresql":  # PostgreSQL committed the claim already; SQLite rolls it back
            update_one(connection, _RELEASE, {"job_id": job_id, "of_attempt": row.attempt})
        raise


def _finish(connection: sa.Connection, job_id: str, attempt: int, result: Result, plan: Plan | None) -> bool:
    parameters: dict[str, Any] = {
        "job_id": job_id,
        "of_attempt": attempt,
        "json": to_json(result).decode(),
        "as_run": None if plan is None else to_json(plan).decode(),
        "picture": result.picture_key or None,
    }
    # a job without latents is listed as uncached too: its entry answers exact repeats
    keys = [latent.key for latent in result.captured] or [NO_LATENTS + job_id]
    if connection.dialect.name == "postgresql":
        return _FINISH_AND_CAPTURE.first(connection, {**parameters, "keys": keys}) is not None
    if _FINISH_ALONE.first(connection, parameters) is None:
        return False
    for key in keys:
        _CAPTURE.first(connection, {"key": key, "job_id": job_id})
    return True


def _cancel(connection: sa.Connection, job_id: str) -> Job:
    row = connection.execute(_CANCEL, {"job_id": job_id}).first()
    return _get(connection, job_id) if row is None else job_of(row)


def _cancel_stale(connection: sa.Connection, older_than_s: float) -> list[str]:
    said = f"waited for more than {older_than_s / 86400:g} days"
    return [job.id for job in update_readable(connection, _CANCEL_STALE, {"older_s": older_than_s, "said": said})]


def _confirm(connection: sa.Connection, job_ids: Sequence[str]) -> None:
    for some in chunks(job_ids):
        connection.execute(_CONFIRM, {"ids": some})


def _to_cache(connection: sa.Connection) -> list[str]:
    return list(connection.execute(sa.select(captured.c.job_id).distinct().order_by(captured.c.job_id)).scalars())


class Jobs(CheckJobs, Expiry, Groups, Lanes, Segmenting, Sweeping, Urgent):
    """The jobs of a catalog. `attempt` is a fencing token: it only grows, and only the newest attempt may write."""

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
        """Insert a job; return (job, True), or (first job, False) for a key that this caller used before.

        Raise ConflictError if the key's first job had another body. With `durable` False, an embedded catalog syncs the
        row with its next durable write, at the latest with the job's end. That suffices if no client gets the job's id
        before.
        """
        key = (caller, idempotency_key, body_hash)
        return await self._database.write(_accept, job, *key, key_lifetime_s, durable=durable, row=True)

    async def get(self, job_id: str) -> Job:
        return await self._database.read(_get, job_id, row=True)

    async def list(
        self,
        *,
        tenant: str | None = None,
        subject: str | None = None,
        state: JobState | None = None,
        limit: int = 50,
        after: str = "",
        clips: bool = False,
    ) -> tuple[builtins.list[Job], str]:
        """Return jobs, newest first, and the token of the next page (empty at the end). tenant, subject: None is any.
        clips: only jobs of clips that were not cancelled.

        Rows that only another version can read are left out, so a page may be short.
        """
        return await self._database.read(_list, tenant, subject, state, limit, after, clips)

    async def confirm(self, job_ids: Sequence[str]) -> None:
        """Record that the broker has stored these jobs' tasks."""
        # if this write is lost, the sweeper sends the tasks again, and the duplicates lose the claim
        await self._database.write(_confirm, job_ids, durable=False)

    async def claim(self, job_id: str, worker: str, lease_s: float, alone: bool = False) -> Job | None:
        """Return the job, now running under the next attempt; None if it is final or another worker's lease is live.

        Raise UnreadableRowError, and claim nothing, if only another version can read the row. `alone`: the worker's
        process holds no other job until the attempt ends.
        """
        # on SQLite, a power cut that undoes a claim also ends the worker; a server must never issue an attempt twice
        return await self._database.write(_claim, job_id, worker, lease_s, alone, durable=False, row=True)

    async def renew(self, job_id: str, attempt: int, lease_s: float) -> bool:
        """Extend the lease; return False if this attempt no longer has the job, in which case the worker must stop."""
        parameters = {"job_id": job_id, "of_attempt": attempt, "lease_s": lease_s}
        # if a power cut undoes this write, the lease only ends earlier
        return await self._database.write(update_one, _RENEW, parameters, durable=False)

    async def checkpoint(self, job_id: str, attempt: int, key: str, step: int) -> bool:
        """Record a checkpoint whose blob is already stored."""
        parameters = {"job_id": job_id, "of_attempt": attempt, "key": key, "step": step}
        return await self._database.write(update_one, _CHECKPOINT, parameters, durable=False)

    async def finish(self, job_id: str, attempt: int, result: Result, plan: Plan | None = None) -> bool:
        """Move a running job to succeeded, with the plan as executed; return False if this attempt lost the job."""
        return await self._database.write(_finish, job_id, attempt, result, plan, row=True)

    async def fail(self, job_id: str, attempt: int, error: str, *, final: bool) -> bool:
        """Move a running job to failed, or back to queued unless `final`; count a failure."""
        parameters = {"job_id": job_id, "of_attempt": attempt, "said": error}
        return await self._database.write(update_one, _FAIL if final else _RETRY, parameters)

    async def buried(self, job_id: str) -> None:
        """Record that the failed job's task is in the dead-letter queue; `reopen` clears this."""
        # if this write is lost, a late duplicate is dead-lettered too
        await self._database.write(update_one, _BURIED, {"job_id": job_id}, durable=False)

    async def release(self, job_id: str, attempt: int) -> bool:
        """Hand a job back unfinished: running → queued, counted neither as a failure nor as a crash."""
        return await self._database.write(update_one, _RELEASE, {"job_id": job_id, "of_attempt": attempt})

    async def cancel(self, job_id: str) -> Job:
        """Cancel a job and return its row afterwards: cancelled, or as it had already ended."""
        return await self._database.write(_cancel, job_id)

    async def cancel_stale(self, older_than_s: float) -> builtins.list[str]:
        """Cancel jobs that were made longer than `older_than_s` ago and still wait, for example because no worker
        has their model; return their ids."""
        return await self._database.write(_cancel_stale, older_than_s)

    async def stopped(self, job_id: str, attempt: int, result: Result) -> bool:
        """Record the cost of a cancelled job when its worker stopped: a result without an image.

        Return False if the job is not cancelled, or if its last attempt was another.
        """
        parameters = {"job_id": job_id, "of_attempt": attempt, "json": to_json(result).decode()}
        return await self._database.write(update_one, _STOPPED, parameters, durable=False)

    async def reopen(self, job_id: str) -> bool:
        """Queue a failed job again with all its counters reset; return False if the job is in another state.

        The caller must then send the task and call `confirm`.
        """
        return await self._database.write(update_one, _REOPEN, {"job_id": job_id})

    async def to_cache(self) -> builtins.list[str]:
        """Return ids of all succeeded jobs that are neither cached nor refused, oldest first."""
        return await self._database.read(_to_cache)

    async def drop_captured(self, job_ids: Sequence[str]) -> builtins.list[str]:
        """Give up caching these jobs' latents; return their blob keys for deletion."""
        return await self._database.write(drop_captured, job_ids, durable=False)
