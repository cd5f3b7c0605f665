"""Erasing: deletes a caller's rows, and blanks what other rows say of them (docs/how-to/erase.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from shared.catalog.engines.database import Database, chunks
from shared.catalog.jobs.job_rows import forget_rows, job_of
from shared.catalog.tables import captured, entries, idempotency_keys, jobs, now_s, states, vectors
from shared.domain.errors import UnreadableRowError
from shared.domain.identity import is_user, under
from shared.domain.ids import ids_in
from shared.domain.plan_rules import without_entries
from shared.domain.types import JobState, PlanSource, to_json

PAGE = 500
FEW = 16
"""Ids up to which the database searches the plans for each; of more, every plan leaves the database."""
Counts = dict[str, tuple[int, int]]
"""Kind → (count, bytes)."""

c, e = jobs.c, entries.c
_ENDED = [state.value for state in JobState if state.final]
_OF_JOBS = (
    ("jobs", c.id),
    ("entries", e.id),
    ("states", states.c.entry_id),
    ("idempotency keys", idempotency_keys.c.job_id),
)


def _owned(
    connection: sa.Connection, table: sa.Table, tenant: str, user: str | None, after: str
) -> tuple[list[str], str]:
    who: Any = (c.request, c.subject) if table is jobs else (e.user,)
    query = sa.select(table.c.id, *who).where(table.c.tenant == tenant, table.c.id > after).order_by(table.c.id)
    rows = connection.execute(query.limit(PAGE)).all()
    found = [row[0] for row in rows if user is None or is_user(_user_of(*row[1:]), user)]
    return found, rows[-1][0] if len(rows) == PAGE else ""


def _user_of(text: str, subject: str | None = None) -> str:
    """Return the stored user of an entry, or of a job's request. For one that cannot be read, return its key's subject
    with an empty label.

    subject: of a job; None: the text is the user itself.
    """
    if subject is None:
        return text
    try:
        return str(json.loads(text).get("user", ""))
    except (ValueError, AttributeError):
        return under(subject, "")


def _cancel(connection: sa.Connection, job_ids: Sequence[str]) -> list[str]:
    cancelled: list[str] = []
    values = {"state": JobState.CANCELLED.value, "lease_until": 0.0, "updated_at": now_s()}
    for some in chunks(job_ids):
        query = sa.update(jobs).where(c.id.in_(some), c.state.not_in(_ENDED)).values(values).returning(c.id)
        cancelled += connection.execute(query).scalars()
    return cancelled


def _erase(connection: sa.Connection, job_ids: Sequence[str]) -> Counts:
    size = sa.func.coalesce(sa.func.sum(sa.func.length(vectors.c.data)), 0)
    numbers = sa.select(sa.func.count(), size).where(vectors.c.entry_id.in_(job_ids))
    number, size_of = connection.execute(numbers).one()
    counted: Counts = {"vectors": (number, int(size_of))}
    for kind, column in _OF_JOBS:
        number = connection.execute(sa.select(sa.func.count()).where(column.in_(job_ids))).scalar_one()
        counted[kind] = number, 0
    for column in (vectors.c.entry_id, states.c.entry_id, e.id, captured.c.job_id, idempotency_keys.c.job_id, c.id):
        connection.execute(sa.delete(column.table).where(column.in_(job_ids)))
    return counted


def _unlink_entries(connection: sa.Connection, job_ids: Sequence[str]) -> int:
    changed = 0
    for column in (e.root, e.background_root):
        query = sa.update(entries).where(column.in_(job_ids), e.id.not_in(job_ids)).values({column.name: ""})
        changed += connection.execute(query).rowcount
    return changed


def _naming(connection: sa.Connection, gone: set[str], after: str) -> tuple[list[str], str]:
    """Return the next jobs whose plan names an erased entry, and the place to continue from; empty at the end."""
    plan: Any = c.plan
    if len(gone) <= FEW:
        plan = sa.case((sa.or_(*(c.plan.contains(one, autoescape=True) for one in gone)), c.plan), else_="")
    rows = connection.execute(sa.select(c.id, plan).where(c.id > after).order_by(c.id).limit(PAGE)).all()
    named = [row[0] for row in rows if row[0] not in gone and not gone.isdisjoint(ids_in(row[1]))]
    return named, rows[-1][0] if len(rows) == PAGE else ""


def _unlink_jobs(connection: sa.Connection, gone: set[str], job_ids: Sequence[str]) -> tuple[int, int]:
    """Blank the erased entries in these jobs' plans. Return the numbers of changed plans, and of results that were an
    erased image."""
    rows = connection.execute(sa.select(jobs).where(c.id.in_(job_ids))).all()
    plans = repeats = 0
    for row, changed in _changed(rows, gone):
        same = c.id == row.id, c.plan == row.plan  # a worker may have written the plan that it ran
        if connection.execute(sa.update(jobs).where(*same).values(changed)).rowcount:
            plans += 1
            repeats += "result" in changed
    return plans, repeats


def _runs(connection: sa.Connection, older: str) -> bool:
    begun = sa.or_(c.state == JobState.RUNNING.value, c.checkpoint_key.is_not(None))
    query = sa.select(c.id).where(begun, c.state.not_in(_ENDED), c.id < older).limit(1)
    return connection.execute(query).first() is not None


def _changed(rows: Sequence[Any], job_ids: set[str]) -> Iterator[tuple[Any, dict[str, Any]]]:
    for row in rows:
        named = job_ids & ids_in(row.plan)
        if not named:
            continue
        try:
            job = job_of(row)
        except UnreadableRowError:  # of another version: the row stays as it is
            continue
        values: dict[str, Any] = {"plan": to_json(without_entries(job.plan, named)).decode()}
        if job.result is not None and job.plan.source is PlanSource.EXACT and job.plan.entry_id in named:
            blank = replace(job.result, picture_key="", picture_sha256="", picture_bytes=0)
            values |= {"result": to_json(blank).decode(), "picture_key": None}
        yield row, values


class Erasing:
    """Erasure of the rows of jobs, and of what other jobs and entries say of them. An entry has the id of its job."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def owned(self, tenant: str, user: str | None) -> list[str]:
        """Return the ids of all jobs and entries of a tenant, or of one of its users (see `is_user`)."""
        found = set[str]()
        for table in (jobs, entries):
            after, more = "", True
            while more:
                ids, after = await self._database.read(_owned, table, tenant, user, after)
                found.update(ids)
                more = bool(after)
        return sorted(found)

    async def cancel(self, job_ids: Sequence[str]) -> list[str]:
        """Cancel those of these jobs that have not ended, whatever version wrote them; return their ids."""
        return await self._database.write(_cancel, job_ids)

    async def erase(self, job_ids: Sequence[str]) -> Counts:
        """Delete the rows of these jobs and entries, few per transaction: other writers wait briefly. Return the number
        of rows by kind, and the bytes of vectors."""
        total: Counts = {}
        for at in range(0, len(job_ids), PAGE):
            for kind, (number, size) in (await self._database.write(_erase, job_ids[at : at + PAGE])).items():
                before = total.get(kind, (0, 0))
                total[kind] = before[0] + number, before[1] + size
        self.forget()
        return total

    def forget(self) -> None:
        """Drop what this process keeps of rows: some may be of erased jobs."""
        forget_rows()

    async def unlink(self, job_ids: Sequence[str]) -> Counts:
        """Blank these entries in the plans and lineage of all others, and the results that were their images."""
        links, repeats, gone, after, more = 0, 0, set(job_ids), "", bool(job_ids)
        for some in chunks(job_ids):
            links += await self._database.write(_unlink_entries, some)
        while more:
            named, after = await self._database.read(_naming, gone, after)
            if named:  # only these are written: other writers wait briefly
                plans, results = await self._database.write(_unlink_jobs, gone, named)
                links, repeats = links + plans, repeats + results
            more = bool(after)
        return {"links": (links, 0), "repeats": (repeats, 0)}

    async def runs(self, older: str) -> bool:
        """Return whether a job that is older than this id runs, or will go on from its checkpoint."""
        return await self._database.read(_runs, older)
