"""Cache entries, their states and their vectors: data that can be rebuilt, committed without a sync."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import sqlalchemy as sa

from shared.catalog.engines.database import Database, among, chunks
from shared.catalog.engines.prepared import Prepared
from shared.catalog.entries.entry_rows import IS_READABLE, entry_of, row_of, state_of
from shared.catalog.entries.indexed import ADD_VECTORS, BY_IDS, Indexed, with_states
from shared.catalog.entries.masks import MOVED, Masks
from shared.catalog.entries.of_tenants import OfTenants
from shared.catalog.jobs.repeats import EXACT, EXACT_OF, OWNERS, VISIBLE, just_generated
from shared.catalog.tables import captured, entries, insert, jobs, now_s, states
from shared.domain.errors import NotFoundError
from shared.domain.types import NEEDS, PICTURE_STEP, Entry, State
from shared.runtime.unreadable import readable

e, s = entries.c, states.c
_NOW: Any = now_s()
_USED = (
    sa.update(states)
    .where(s.entry_id == sa.bindparam("of_entry"), s.step == sa.bindparam("of_step"))
    .values(
        uses=s.uses + 1,
        used_at=sa.case((s.used_at < sa.bindparam("at"), sa.bindparam("at")), else_=s.used_at),
    )
)
_ALIVE = sa.exists().where(s.entry_id == e.id)
_ADD_STATES = sa.insert(states)
_adding = insert(entries).values(
    created_at=sa.func.coalesce(sa.bindparam("given_at", type_=e.created_at.type), _NOW)  # None: now
)
_ADD = Prepared(_adding.on_conflict_do_nothing().returning(e.created_at))
_ANSWERED = Prepared(sa.delete(captured).where(captured.c.job_id == sa.bindparam("of_job")))
_STATES = sa.select(states).join(entries, e.id == s.entry_id).where(IS_READABLE).order_by(s.entry_id, s.step)
_NONE: Any = sa.literal_column("''")
_CODEC = sa.case((s.codec.contains(NEEDS), s.codec), else_=_NONE)
_BARE_STATES = _STATES.with_only_columns(
    s.entry_id, s.step, _NONE.label("key"), s.bytes, _CODEC.label("codec"), _NONE.label("sha256"), s.uses,
    s.created_at, s.used_at,
)  # fmt: skip
_MASK_BYTES = sa.select(sa.func.sum(e.mask_bytes))
_COUNT_ENTRIES = sa.select(sa.func.count()).select_from(entries)
_COUNT_STATES = sa.select(
    *(
        counted.filter(is_kind)
        for is_kind in (s.step > PICTURE_STEP, s.step == PICTURE_STEP)
        for counted in (sa.func.count(), sa.func.sum(s.bytes))
    )
)


@dataclass(frozen=True, slots=True)
class Totals:
    entries: int
    states: int
    """Number of latents."""
    bytes: int
    """Bytes of the latents and of the masks."""
    pictures: int = 0
    """Number of images that jobs can start from."""
    picture_bytes: int = 0


def _add(connection: sa.Connection, entry: Entry, named: Mapping[str, bytes]) -> bool:
    given = {"given_at": entry.created_at or None, **row_of(entry)}
    added = _ADD.first(connection, given)
    if added is None:
        return False
    at = added.created_at
    if entry.states:
        rows = [
            {
                "entry_id": entry.id,
                "step": state.step,
                "key": state.key,
                "bytes": state.bytes,
                "codec": state.codec,
                "sha256": state.sha256,
                "uses": state.uses,
                "created_at": state.created_at or at,
                "used_at": state.used_at or at,
            }
            for state in entry.states
        ]
        connection.execute(_ADD_STATES, rows)
    if named:
        rows = [{"entry_id": entry.id, "name": name, "data": data} for name, data in named.items()]
        connection.execute(ADD_VECTORS, rows)
    if entry.job_id:
        # from now on the entry names the job's latents
        _ANSWERED.first(connection, {"of_job": entry.job_id})
        if entry.mask is not None:  # and its masks
            connection.execute(MOVED, {"of_job": entry.job_id})
    return True


def _by_ids(connection: sa.Connection, ids: Sequence[str]) -> dict[str, Entry]:
    rows = [row for some in chunks(ids) for row in connection.execute(BY_IDS, {"ids": some})]
    return {entry.id: entry for entry in with_states(connection, rows)}


def _get(connection: sa.Connection, entry_id: str) -> Entry:
    found = _by_ids(connection, [entry_id])
    if entry_id not in found:
        for row in connection.execute(BY_IDS, {"ids": [entry_id]}):
            entry_of(row, ())  # raises an error that says why the entry is left out
        raise NotFoundError(f"entry {entry_id!r}: not in the cache; it was evicted, or the id is wrong")
    return found[entry_id]


def _exact(
    connection: sa.Connection, exact_key: str, tenant: str, owners: Sequence[str], weights: Collection[str]
) -> Entry | None:
    if entry := just_generated(connection, exact_key, tenant, owners, weights):
        return entry
    named = zip_longest(OWNERS, owners, fillvalue="")  # "" owns nothing
    by = {"by_key": exact_key, "tenant": tenant, **dict(named)}
    if VISIBLE.first(connection, by) is None:
        return None
    row = connection.execute(EXACT_OF, by | {"weights": list(weights)}) if weights else connection.execute(EXACT, by)
    found = with_states(connection, row.all())
    return found[0] if found else None


def _use(connection: sa.Connection, uses: Sequence[tuple[str, int, float]]) -> None:
    if uses:
        rows = [{"of_entry": entry_id, "of_step": step, "at": at} for entry_id, step, at in uses]
        connection.execute(_USED, rows)


def _drop_states(connection: sa.Connection, pairs: Sequence[tuple[str, int]]) -> list[State]:
    dropped: list[State] = []
    for some in chunks(pairs):
        gone = sa.delete(states).where(sa.tuple_(s.entry_id, s.step).in_(some)).returning(states)
        dropped.extend(state_of(row) for row in connection.execute(gone))
    return sorted(dropped, key=lambda state: (state.entry_id, state.step))


def _drop_entries(connection: sa.Connection, ids: Sequence[str]) -> list[Entry]:
    dropped = _by_ids(connection, ids)
    for some in chunks(dropped):
        connection.execute(sa.delete(entries).where(e.id.in_(some)))
    return list(dropped.values())


def _states(connection: sa.Connection, bare: bool) -> list[State]:
    readable(connection.execute(sa.select(entries).where(~IS_READABLE)), lambda row: entry_of(row, ()))
    found: list[State] = []
    entry_id, at = "", 0.0
    sizes: dict[int, int] = {}
    for rows in connection.execute(_BARE_STATES if bare else _STATES).partitions(1000):
        for own_id, step, key, size, codec, sha256, uses, created_at, used_at in rows:
            # a start loads hundreds of thousands of states: share equal values, which most states of an entry have
            entry_id = entry_id if own_id == entry_id else own_id
            at = at if created_at == at else created_at
            used_at = at if used_at == at else used_at
            size, codec = sizes.setdefault(size, size), sys.intern(codec)
            found.append(State(entry_id, step, key, size, codec, sha256, uses, at, used_at))
    return found


def _page(connection: sa.Connection, limit: int, after: str) -> tuple[list[Entry], str]:
    query = sa.select(entries).order_by(e.id.desc()).limit(limit + 1)
    while True:
        rows = connection.execute(query.where(e.id < after) if after else query).all()
        found, after = with_states(connection, rows[:limit]), rows[limit - 1].id if len(rows) > limit else ""
        if found or not after:
            return found, after


def _spent(connection: sa.Connection, limit: int, max_age_s: float) -> list[str]:
    job = sa.exists().where(jobs.c.id == e.job_id)
    kinds = [~_ALIVE & ~job, *([e.created_at < _NOW - max_age_s] if max_age_s else [])]
    found = dict[str, None]()
    for kind in kinds:  # not one query with OR, which would give up the joins
        query = sa.select(e.id).where(kind, IS_READABLE).order_by(e.id).limit(limit - len(found))
        found |= dict.fromkeys(connection.execute(query).scalars())
    return list(found)


def _totals(connection: sa.Connection) -> Totals:
    count = int(connection.execute(_COUNT_ENTRIES).scalar_one())
    states, size, pictures, picture_size = (int(one or 0) for one in connection.execute(_COUNT_STATES).one())
    size += int(connection.execute(_MASK_BYTES).scalar_one() or 0)
    return Totals(count, states=states, bytes=size, pictures=pictures, picture_bytes=picture_size)


def _referenced(connection: sa.Connection, keys: Sequence[str]) -> set[str]:
    found, left = set[str](), {key for key in keys if key}
    # nearly every blob is a state or an image in the cache: the other columns are asked for few keys, or none
    for column in (
        s.key, e.picture_key, captured.c.key, jobs.c.picture_key, jobs.c.checkpoint_key, e.mask_key, jobs.c.mask_key,
    ):  # fmt: skip
        named = among(connection, column, left)
        found |= named
        left -= named
    return found


class Entries(Indexed, Masks, OfTenants):
    """The cache entries of a catalog. Entries that only another version can read are skipped and left unchanged."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, entry: Entry, vectors: Mapping[str, bytes]) -> bool:
        """Add the entry with its states and named vectors (float32, little endian).

        Return False, and write nothing, if the entry or another entry of the same job exists. A `created_at` or
        `used_at` of 0 becomes the current time.
        """
        return await self._database.write(_add, entry, vectors, durable=False)

    async def by_ids(self, ids: Sequence[str]) -> dict[str, Entry]:
        """Return the existing entries of these ids, with their live states by step."""
        return await self._database.read(_by_ids, ids)

    async def get(self, entry_id: str) -> Entry:
        return await self._database.read(_get, entry_id)

    async def exact(
        self, exact_key: str, tenant: str, owners: Sequence[str], weights: Collection[str] = ()
    ) -> Entry | None:
        """Return the newest entry of the same request in this tenant that one of these scope keys may see.

        A finished job that is not yet cached counts as its future entry, without states. `weights`: hashes of the
        models that may have generated the entry; empty allows any.
        """
        return await self._database.read(_exact, exact_key, tenant, owners, weights, row=True)

    async def used(self, uses: Sequence[tuple[str, int, float]]) -> None:
        """Count uses: (entry id, step, Unix seconds) each. States that are gone are skipped."""
        await self._database.write(_use, uses, durable=False)

    async def drop_states(self, pairs: Sequence[tuple[str, int]]) -> list[State]:
        """Remove each (entry id, step); return the removed rows, whose blobs can then be deleted."""
        return await self._database.write(_drop_states, pairs, durable=False)

    async def drop_entries(self, ids: Sequence[str]) -> list[Entry]:
        """Remove entries with their states and vectors; return the removed entries."""
        return await self._database.write(_drop_entries, ids, durable=False)

    async def states(self, *, bare: bool = False) -> list[State]:
        """Return every live state, except of entries that only another version can read: these are not evicted.

        `bare`: without key, codec and hash, as `State.bare` returns it.
        """
        return await self._database.read(_states, bare)

    async def spent(self, limit: int = 1000, max_age_s: float = 0.0) -> list[str]:
        """Return ids of entries without states whose job expired, and of those older than `max_age_s` (0: none)."""
        return await self._database.read(_spent, limit, max_age_s)

    async def page(self, limit: int, after: str = "") -> tuple[list[Entry], str]:
        """Return a page of entries, newest first, and the token of the next page (empty at the end)."""
        return await self._database.read(_page, limit, after)

    async def totals(self) -> Totals:
        return await self._database.read(_totals)

    async def referenced(self, keys: Sequence[str]) -> set[str]:
        """Return the given blob keys that a job, an entry, its masks, a state or an uncached capture still names."""
        return await self._database.read(_referenced, keys)
