"""Cache entries, their states and their vectors: what can be rebuilt, committed lazily."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from shared.catalog.database import Database
from shared.catalog.entry_rows import IS_READABLE, compat_of, entry_of, row_of, state_of
from shared.catalog.jobs import CHUNK
from shared.catalog.repeats import EXACT, EXACT_OF, just_drawn
from shared.catalog.tables import captured, entries, jobs, now_s, states, vectors
from shared.errors import NotFoundError
from shared.types import PICTURE_STEP, Entry, IndexItem, State, Vector, vector_from
from shared.unreadable import readable, unreadable

IMAGE = "image"
"""The named vector of an entry's picture; the others belong to its prompt, and so to its latents."""

PROMPT = "prompt"
"""Stands for all of the latter where it is said what an entry is found by."""

e, s, v = entries.c, states.c, vectors.c
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
_HAS_LATENT = sa.exists().where(s.entry_id == e.id, s.step > PICTURE_STEP)
_HAS_PICTURE = sa.exists().where(s.entry_id == e.id, s.step == PICTURE_STEP)
_IS_EMBEDDED = sa.exists().where(v.entry_id == e.id, v.name == IMAGE)
_FOUND = sa.or_(_HAS_LATENT, sa.and_(_HAS_PICTURE, _IS_EMBEDDED))
"""What the index must hold: an entry with a latent, found by its prompt, or with a picture, found by what it shows."""
# built once: building a statement costs more than running it
_IDS: Any = sa.bindparam("ids", expanding=True)
_BY_IDS = sa.select(entries).where(e.id.in_(_IDS))
_STATES_OF = sa.select(states).where(s.entry_id.in_(_IDS)).order_by(s.entry_id, s.step)
_LIVE_OF = sa.select(e.id, _HAS_LATENT, sa.and_(_HAS_PICTURE, _IS_EMBEDDED)).where(e.id.in_(_IDS), _FOUND)
_VECTORS_OF = sa.select(vectors).where(v.entry_id.in_(_IDS))
_ENCODERS_OF = sa.select(e.id, e.encoder_hash).where(e.id.in_(_IDS), _HAS_PICTURE)
_SET_ENCODER = sa.update(entries).where(e.id.in_(_IDS)).values(encoder_hash=sa.bindparam("by"))
_DROP_IMAGES = sa.delete(vectors).where(v.entry_id.in_(_IDS), v.name == IMAGE)
_ADD_STATES, _ADD_VECTORS = sa.insert(states), sa.insert(vectors)
_ANSWERED = sa.delete(captured).where(captured.c.job_id == sa.bindparam("of_job"))
_COUNT_ENTRIES = sa.select(sa.func.count()).select_from(entries)
_COUNT_STATES = sa.select(
    *(
        counted.filter(is_kind)
        for is_kind in (s.step > PICTURE_STEP, s.step == PICTURE_STEP)
        for counted in (sa.func.count(), sa.func.sum(s.bytes))
    )
)


@cache
def _adding(dialect: str) -> Any:
    """Adds an entry unless it is there; `given_at` None: now."""
    insert: Any = postgresql.insert if dialect == "postgresql" else sqlite.insert
    at = sa.func.coalesce(sa.bindparam("given_at", type_=e.created_at.type), _NOW)
    return insert(entries).values(created_at=at).on_conflict_do_nothing().returning(e.created_at)


@dataclass(frozen=True, slots=True)
class Totals:
    entries: int
    states: int
    """Latents."""
    bytes: int
    """Of the latents."""
    pictures: int = 0
    """That can be started from."""
    picture_bytes: int = 0


def _chunks(values: Iterable[Any]) -> Iterable[list[Any]]:
    rest = list(values)
    return (rest[at : at + CHUNK] for at in range(0, len(rest), CHUNK))


def _with_states(connection: sa.Connection, rows: Sequence[Any]) -> list[Entry]:
    """The entries that this version can read, in the rows' order, each with its live states by step."""
    live: dict[str, list[State]] = {row.id: [] for row in rows}
    for ids in _chunks(live):
        for row in connection.execute(_STATES_OF, {"ids": ids}):
            live[row.entry_id].append(state_of(row))
    return readable(rows, lambda row: entry_of(row, live[row.id]))


def _add(connection: sa.Connection, entry: Entry, named: Mapping[str, bytes]) -> bool:
    given = {"given_at": entry.created_at or None, **row_of(entry)}
    at = connection.execute(_adding(connection.dialect.name), given).scalar()
    if at is None:
        return False
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
        connection.execute(_ADD_VECTORS, rows)
    if entry.job_id:
        # the entry answers for the job's latents from here on
        connection.execute(_ANSWERED, {"of_job": entry.job_id})
    return True


def _by_ids(connection: sa.Connection, ids: Sequence[str]) -> dict[str, Entry]:
    rows = [row for some in _chunks(ids) for row in connection.execute(_BY_IDS, {"ids": some})]
    return {entry.id: entry for entry in _with_states(connection, rows)}


def _get(connection: sa.Connection, entry_id: str) -> Entry:
    found = _by_ids(connection, [entry_id])
    if entry_id not in found:
        for row in connection.execute(_BY_IDS, {"ids": [entry_id]}):
            entry_of(row, ())  # which says why it is left out
        raise NotFoundError(f"entry {entry_id!r}: not in the cache")
    return found[entry_id]


def _exact(connection: sa.Connection, exact_key: str, owners: Sequence[str], weights: Collection[str]) -> Entry | None:
    if entry := just_drawn(connection, exact_key, owners, weights):
        return entry
    by = {"by_key": exact_key, "owners": list(owners)}
    row = connection.execute(EXACT_OF, by | {"weights": list(weights)}) if weights else connection.execute(EXACT, by)
    found = _with_states(connection, row.all())
    return found[0] if found else None


def _use(connection: sa.Connection, uses: Sequence[tuple[str, int, float]]) -> None:
    if uses:
        rows = [{"of_entry": entry_id, "of_step": step, "at": at} for entry_id, step, at in uses]
        connection.execute(_USED, rows)


def _drop_states(connection: sa.Connection, pairs: Sequence[tuple[str, int]]) -> list[State]:
    dropped: list[State] = []
    for some in _chunks(pairs):
        gone = sa.delete(states).where(sa.tuple_(s.entry_id, s.step).in_(some)).returning(states)
        dropped.extend(state_of(row) for row in connection.execute(gone))
    return sorted(dropped, key=lambda state: (state.entry_id, state.step))


def _drop_entries(connection: sa.Connection, ids: Sequence[str]) -> list[Entry]:
    dropped = _by_ids(connection, ids)
    for some in _chunks(dropped):
        connection.execute(sa.delete(entries).where(e.id.in_(some)))
    return list(dropped.values())


def _states(connection: sa.Connection) -> list[State]:
    readable(connection.execute(sa.select(entries).where(~IS_READABLE)), lambda row: entry_of(row, ()))
    query = sa.select(states).join(entries, e.id == s.entry_id).where(IS_READABLE).order_by(s.entry_id, s.step)
    return [state_of(row) for row in connection.execute(query)]


def _items(connection: sa.Connection, after: str, limit: int) -> list[IndexItem]:
    rows = connection.execute(sa.select(entries).where(e.id > after, _FOUND).order_by(e.id).limit(limit)).all()
    return _as_items(connection, rows, _live(connection, [row.id for row in rows]))


def _items_of(connection: sa.Connection, ids: Sequence[str]) -> list[IndexItem]:
    return _placed(connection, ids)[0]


def _live_ids(connection: sa.Connection, after: str, limit: int) -> list[str]:
    query = sa.select(e.id).where(e.id > after, _FOUND).order_by(e.id).limit(limit)
    return list(connection.execute(query).scalars())


def _live(connection: sa.Connection, ids: Sequence[str]) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for some in _chunks(ids):
        for entry_id, latent, picture in connection.execute(_LIVE_OF, {"ids": some}):
            found[entry_id] = frozenset({PROMPT} if latent else ()) | frozenset({IMAGE} if picture else ())
    return found


def _placed(connection: sa.Connection, ids: Sequence[str]) -> tuple[list[IndexItem], dict[str, frozenset[str]]]:
    live = _live(connection, ids)
    rows = [row for some in _chunks(sorted(live)) for row in connection.execute(_BY_IDS, {"ids": some})]
    return _as_items(connection, rows, live), live


def _as_items(connection: sa.Connection, rows: Sequence[Any], live: Mapping[str, frozenset[str]]) -> list[IndexItem]:
    named: dict[str, dict[str, Any]] = {row.id: {} for row in rows}
    for ids in _chunks(named):
        for row in connection.execute(_VECTORS_OF, {"ids": ids}):
            if (IMAGE if row.name == IMAGE else PROMPT) in live.get(row.entry_id, ()):
                named[row.entry_id] |= _vector_of(row)
    return [
        IndexItem(row.id, named[row.id], compat=str(compat_of(row)), owner=row.owner, encoder_hash=row.encoder_hash)
        for row in rows
    ]


def _vector_of(row: Any) -> dict[str, Vector]:
    """The row's vector by its name; empty for one that this version cannot read."""
    try:
        return {row.name: vector_from(row.data)}
    except (ValueError, TypeError) as error:
        unreadable(vectors.name, row.entry_id, error)
        return {}


def _unembedded(connection: sa.Connection, limit: int, after: str) -> list[Entry]:
    query = sa.select(entries).where(e.id > after, _HAS_PICTURE, ~_IS_EMBEDDED, IS_READABLE).order_by(e.id).limit(limit)
    return _with_states(connection, connection.execute(query).all())


def _embedded(connection: sa.Connection, named: Mapping[str, bytes], encoder_hash: str) -> dict[str, bool]:
    rows = (row for some in _chunks(named) for row in connection.execute(_ENCODERS_OF, {"ids": some}))
    by = {row.id: row.encoder_hash for row in rows}
    kept = [entry_id for entry_id in named if by.get(entry_id) in ("", encoder_hash)]
    for some in _chunks(entry_id for entry_id in kept if not by[entry_id]):
        connection.execute(_SET_ENCODER, {"ids": some, "by": encoder_hash})
    for some in _chunks(kept):
        connection.execute(_DROP_IMAGES, {"ids": some})
        images = [{"entry_id": entry_id, "name": IMAGE, "data": named[entry_id]} for entry_id in some]
        connection.execute(_ADD_VECTORS, images)
    return {entry_id: entry_id in kept for entry_id in by}


def _page(connection: sa.Connection, limit: int, after: str) -> tuple[list[Entry], str]:
    query = sa.select(entries).order_by(e.id.desc()).limit(limit + 1)
    while True:
        rows = connection.execute(query.where(e.id < after) if after else query).all()
        found, after = _with_states(connection, rows[:limit]), rows[limit - 1].id if len(rows) > limit else ""
        if found or not after:
            return found, after


def _spent(connection: sa.Connection, limit: int) -> list[str]:
    job = sa.exists().where(jobs.c.id == e.job_id)
    return list(
        connection.execute(sa.select(e.id).where(~_ALIVE, ~job, IS_READABLE).order_by(e.id).limit(limit)).scalars()
    )


def _totals(connection: sa.Connection) -> Totals:
    count = int(connection.execute(_COUNT_ENTRIES).scalar_one())
    states, size, pictures, picture_size = (int(one or 0) for one in connection.execute(_COUNT_STATES).one())
    return Totals(count, states=states, bytes=size, pictures=pictures, picture_bytes=picture_size)


def _referenced(connection: sa.Connection, keys: Sequence[str]) -> set[str]:
    named: set[str] = set()
    columns = (e.picture_key, s.key, captured.c.key, jobs.c.picture_key, jobs.c.checkpoint_key)
    for some in _chunks(key for key in keys if key):
        for column in columns:
            named.update(connection.execute(sa.select(column).where(column.in_(some))).scalars())
    return named


class Entries:
    """The cache entries of a catalog; those that only another version can read are left out, and left as they are."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, entry: Entry, vectors: Mapping[str, bytes]) -> bool:
        """The entry with its states and named vectors (float32, little endian); False, and nothing written, when the
        entry or another of the same job is already there. A `created_at` or `used_at` of 0 becomes now."""
        return await self._database.write_lazily(_add, entry, vectors)

    async def by_ids(self, ids: Sequence[str]) -> dict[str, Entry]:
        """Those that are there, with their live states by step."""
        return await self._database.read(_by_ids, ids)

    async def get(self, entry_id: str) -> Entry:
        return await self._database.read(_get, entry_id)

    async def exact(self, exact_key: str, owners: Sequence[str], weights: Collection[str] = ()) -> Entry | None:
        """The newest entry of the same request that one of these scope keys may see; of a job that is not yet cached,
        the entry that it will be, without states. weights: hashes of the models that may have generated it; empty:
        any."""
        return await self._database.read(_exact, exact_key, owners, weights)

    async def used(self, uses: Sequence[tuple[str, int, float]]) -> None:
        """(entry id, step, Unix seconds) each; states that are gone are skipped."""
        await self._database.write_lazily(_use, uses)

    async def drop_states(self, pairs: Sequence[tuple[str, int]]) -> list[State]:
        """Removes (entry id, step) each; returns the rows that were there, so that their blobs can go."""
        return await self._database.write_lazily(_drop_states, pairs)

    async def drop_entries(self, ids: Sequence[str]) -> list[Entry]:
        """Removes entries with their states and vectors; returns what was there."""
        return await self._database.write_lazily(_drop_entries, ids)

    async def states(self) -> list[State]:
        """Every live state; not those of entries that only another version can read, which are not its to evict."""
        return await self._database.read(_states)

    async def items(self, after: str = "", limit: int = 1000) -> list[IndexItem]:
        """A page, by entry id, of what the index must hold: the entries with a live latent, or a picture that was
        embedded; each with the vectors of what it has."""
        return await self._database.read(_items, after, limit)

    async def items_of(self, ids: Sequence[str]) -> list[IndexItem]:
        """The same for these entries; those that are found by nothing are left out."""
        return await self._database.read(_items_of, ids)

    async def placed(self, ids: Sequence[str]) -> tuple[list[IndexItem], dict[str, frozenset[str]]]:
        """`items_of` these entries, and what was `live` of them just before."""
        return await self._database.read(_placed, ids)

    async def live_ids(self, after: str = "", limit: int = 1000) -> list[str]:
        """A page, in order, of the ids of what the index must hold."""
        return await self._database.read(_live_ids, after, limit)

    async def live(self, ids: Sequence[str]) -> dict[str, frozenset[str]]:
        """Those of these entries that the index must hold, and what they are found by: `prompt`, `image`."""
        return await self._database.read(_live, ids)

    async def unembedded(self, limit: int = 100, after: str = "") -> list[Entry]:
        """A page, by entry id, of those whose picture can be started from but is not embedded yet."""
        return await self._database.read(_unembedded, limit, after)

    async def embedded(self, vectors: Mapping[str, bytes], encoder_hash: str) -> dict[str, bool]:
        """Keeps the embeddings of these entries' pictures, id → float32, little endian. False, and nothing kept, where
        the prompt was embedded by another encoder; those whose entry or picture is gone are left out."""
        return await self._database.write_lazily(_embedded, vectors, encoder_hash)

    async def spent(self, limit: int = 1000) -> list[str]:
        """Ids of entries with no state left whose job expired: nothing can be had from them any more."""
        return await self._database.read(_spent, limit)

    async def page(self, limit: int, after: str = "") -> tuple[list[Entry], str]:
        """Newest first, and the token of the next page (empty at the end)."""
        return await self._database.read(_page, limit, after)

    async def totals(self) -> Totals:
        return await self._database.read(_totals)

    async def referenced(self, keys: Sequence[str]) -> set[str]:
        """Which of these blob keys a job, an entry, a state or an uncached capture still names."""
        return await self._database.read(_referenced, keys)
