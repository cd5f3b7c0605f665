"""Custody of blobs: the store of this catalog, the blobs that await deletion, and the jobs whose blobs are erased."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from shared.catalog.engines.database import Database, among, chunks
from shared.catalog.jobs.job_rows import jobs_of
from shared.catalog.tables import entries, erasures, identity, insert, jobs, now_s, quarantine
from shared.domain.ids import new_id

CATALOG, STORE, PAIRED_WITH = "catalog", "store", "paired_with"
q = quarantine.c
_NOW: Any = now_s()


@dataclass(frozen=True, slots=True)
class Ids:
    """Ids of a catalog and of the blob store that belongs to it."""

    catalog: str
    store: str
    paired_with: str
    """Location of that store; empty until the catalog is paired with a store."""


_marking = insert(quarantine).values(since=_NOW, seen_at=_NOW)
_MARK = _marking.on_conflict_do_update(index_elements=["key"], set_={"seen_at": _marking.excluded.seen_at})
_erasing = insert(erasures).values(at=_NOW)
_ERASE = _erasing.on_conflict_do_update(index_elements=["job_id"], set_={"at": _erasing.excluded.at})
_naming = insert(identity)
_NAME = _naming.on_conflict_do_update(index_elements=["name"], set_={"value": _naming.excluded.value})


def _read_ids(connection: sa.Connection) -> Ids | None:
    names = {row.name: row.value for row in connection.execute(sa.select(identity))}
    if not names.keys() >= {CATALOG, STORE}:
        return None
    return Ids(names[CATALOG], names[STORE], names.get(PAIRED_WITH, ""))


def _make_ids(connection: sa.Connection) -> Ids:
    """Create both ids. Concurrent processes agree, because the first insert of a name wins."""
    made = _naming.on_conflict_do_nothing()
    for name in (CATALOG, STORE):
        connection.execute(made, {"name": name, "value": new_id()})
    ids = _read_ids(connection)
    assert ids is not None
    return ids


def _pair(connection: sa.Connection, store: str, place: str) -> None:
    connection.execute(_NAME, [{"name": STORE, "value": store}, {"name": PAIRED_WITH, "value": place}])


def _known(connection: sa.Connection, job_ids: Sequence[str]) -> set[str]:
    return among(connection, jobs.c.id, job_ids) | among(connection, entries.c.job_id, job_ids)


def _in_work(connection: sa.Connection, job_ids: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for some in chunks(job_ids):
        rows = connection.execute(sa.select(jobs).where(jobs.c.id.in_(some))).all()
        found |= {row.id for row in rows} - {job.id for job in jobs_of(rows) if job.state.final}
    return found


def _now(connection: sa.Connection) -> float:
    return float(connection.execute(sa.select(_NOW)).scalar_one())


def _mark(connection: sa.Connection, keys: Sequence[str]) -> None:
    for some in chunks(keys):
        connection.execute(_MARK, [{"key": key} for key in some])


def _release(connection: sa.Connection, keys: Sequence[str]) -> None:
    for some in chunks(keys):
        connection.execute(sa.delete(quarantine).where(q.key.in_(some)))


def _erase(connection: sa.Connection, job_ids: Sequence[str]) -> None:
    for some in chunks(job_ids):
        connection.execute(_ERASE, [{"job_id": job_id} for job_id in some])


def _erased(connection: sa.Connection, job_ids: Sequence[str], for_s: float) -> set[str]:
    return among(connection, erasures.c.job_id, job_ids, erasures.c.at <= _now(connection) - for_s)


def _erased_since(connection: sa.Connection, for_s: float) -> list[str]:
    lately = sa.select(erasures.c.job_id).where(erasures.c.at > _now(connection) - for_s)
    ids = set(connection.execute(lately).scalars())
    return sorted(ids - _known(connection, sorted(ids)))


def _end_pass(connection: sa.Connection, began_at: float, keep_erasures_s: float) -> None:
    connection.execute(sa.delete(quarantine).where(q.seen_at < began_at))
    connection.execute(sa.delete(erasures).where(erasures.c.at < began_at - keep_erasures_s))


def _counts(connection: sa.Connection, for_s: float) -> tuple[int, int]:
    due = sa.func.count().filter(q.since <= _now(connection) - for_s)
    marked, of_them_due = connection.execute(sa.select(sa.func.count(), due).select_from(quarantine)).one()
    return int(marked), int(of_them_due)


def _due(connection: sa.Connection, for_s: float, limit: int) -> list[str]:
    query = sa.select(q.key).where(q.since <= _now(connection) - for_s).order_by(q.since, q.key).limit(limit)
    return list(connection.execute(query).scalars())


class Custody:
    """Ownership of blobs. Times are Unix seconds by the database's clock."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def ids(self) -> Ids:
        """Return the ids of this catalog and its store; the first call creates them."""
        found = await self._database.read(_read_ids)
        return found if found is not None else await self._database.write(_make_ids)

    async def pair(self, store: str, place: str) -> None:
        """Record the store that belongs to this catalog, and its location in readable form."""
        await self._database.write(_pair, store, place)

    async def known(self, job_ids: Sequence[str]) -> set[str]:
        """Return the given jobs that have a row, or whose entry has one."""
        return await self._database.read(_known, job_ids)

    async def in_work(self, job_ids: Sequence[str]) -> set[str]:
        """Return the given jobs that have not ended, or whose row only another version can read."""
        return await self._database.read(_in_work, job_ids)

    async def now(self) -> float:
        return await self._database.read(_now)

    # ---- quarantine ----

    async def mark(self, keys: Sequence[str]) -> None:
        """Mark these blobs as unreferenced; an existing mark keeps its time."""
        await self._database.write(_mark, keys, durable=False)

    async def release(self, keys: Sequence[str]) -> None:
        """Remove these marks."""
        await self._database.write(_release, keys, durable=False)

    async def end_pass(self, began_at: float, keep_erasures_s: float) -> None:
        """Remove the marks not renewed since `began_at`, and the erasures more than `keep_erasures_s` older."""
        await self._database.write(_end_pass, began_at, keep_erasures_s, durable=False)

    async def counts(self, for_s: float) -> tuple[int, int]:
        """Return (number of marked blobs, number of those marked for at least `for_s`)."""
        return await self._database.read(_counts, for_s)

    async def due(self, for_s: float, limit: int) -> list[str]:
        """Return keys that have been marked for at least `for_s`, oldest first."""
        return await self._database.read(_due, for_s, limit)

    # ---- erasing on request ----

    async def erase(self, job_ids: Sequence[str]) -> None:
        """Let the unreferenced leftovers of these jobs' blobs skip the quarantine."""
        await self._database.write(_erase, job_ids)

    async def erased_since(self, for_s: float) -> list[str]:
        """Return the jobs that were erased in the last `for_s`, without those that still have a row: of a purge, the
        entries alone went."""
        return await self._database.read(_erased_since, for_s)

    async def erased(self, job_ids: Sequence[str], for_s: float) -> set[str]:
        """Return the given jobs that were erased at least `for_s` ago."""
        return await self._database.read(_erased, job_ids, for_s)
