"""The part of the entries that the index must hold: what each entry is found by, its prompt or image, and the
vectors."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from shared.catalog.engines.database import Database, chunks
from shared.catalog.entries.entry_rows import IS_READABLE, entry_of, state_of
from shared.catalog.tables import entries, states, vectors
from shared.domain.types import PICTURE_STEP, CompatKey, Entry, IndexItem, Size, State, Vector, vector_from
from shared.runtime.unreadable import readable, unreadable

IMAGE = "image"
"""Name of an image's vector; all other vectors belong to the prompt, and so to the latents."""

PROMPT = "prompt"
"""Name for all prompt vectors together, in lists of the ways to find an entry."""

_FOUND_BY = {
    (latent, picture): frozenset([PROMPT] * latent + [IMAGE] * picture)
    for latent in (False, True)
    for picture in (False, True)
}
"""Ways to find an entry, by whether it has a latent and an embedded image."""

e, s, v = entries.c, states.c, vectors.c
_HAS_LATENT = sa.exists().where(s.entry_id == e.id, s.step > PICTURE_STEP)
_HAS_PICTURE = sa.exists().where(s.entry_id == e.id, s.step == PICTURE_STEP)
_IS_EMBEDDED = sa.exists().where(v.entry_id == e.id, v.name == IMAGE)
_FOUND = sa.or_(_HAS_LATENT, sa.and_(_HAS_PICTURE, _IS_EMBEDDED))
"""Condition for the index: an entry with a latent (found by prompt) or with an embedded image (found by content)."""
# built once: building a statement costs more than running it
_IDS: Any = sa.bindparam("ids", expanding=True)
BY_IDS = sa.select(entries).where(e.id.in_(_IDS))
_STATES_OF = sa.select(states).where(s.entry_id.in_(_IDS)).order_by(s.entry_id, s.step)
_IS_FOUND_BY = _HAS_LATENT.label("latent"), sa.and_(_HAS_PICTURE, _IS_EMBEDDED).label("picture")
_INDEXED: Any = sa.select(
    e.id, e.owner, e.encoder_hash, e.weights_hash, e.sampler, e.dtype, e.width, e.height, e.frames, *_IS_FOUND_BY
)
_PAGE_OF_ITEMS = (
    _INDEXED.where(e.id > sa.bindparam("after"), _FOUND).order_by(e.id).limit(sa.bindparam("most", type_=sa.Integer))
)
_ITEMS_OF = _INDEXED.where(e.id.in_(_IDS), _FOUND)
_LIVE_OF = sa.select(e.id, *_IS_FOUND_BY).where(e.id.in_(_IDS), _FOUND)
_VECTORS_OF = sa.select(vectors).where(v.entry_id.in_(_IDS))
_ENCODERS_OF = sa.select(e.id, e.encoder_hash).where(e.id.in_(_IDS), _HAS_PICTURE)
_SET_ENCODER = sa.update(entries).where(e.id.in_(_IDS)).values(encoder_hash=sa.bindparam("by"))
_DROP_IMAGES = sa.delete(vectors).where(v.entry_id.in_(_IDS), v.name == IMAGE)
ADD_VECTORS = sa.insert(vectors)


def with_states(connection: sa.Connection, rows: Sequence[Any]) -> list[Entry]:
    """Return the entries that this version can read, in the rows' order, each with its live states by step."""
    live: dict[str, list[State]] = {row.id: [] for row in rows}
    for ids in chunks(live):
        for row in connection.execute(_STATES_OF, {"ids": ids}):
            live[row.entry_id].append(state_of(row))
    return readable(rows, lambda row: entry_of(row, live[row.id]))


def _items(connection: sa.Connection, after: str, limit: int) -> list[IndexItem]:
    return _as_items(connection, connection.execute(_PAGE_OF_ITEMS, {"after": after, "most": limit}).all())


def _items_of(connection: sa.Connection, ids: Sequence[str]) -> list[IndexItem]:
    return _placed(connection, ids)[0]


def _live_ids(connection: sa.Connection, after: str, limit: int) -> list[str]:
    query = sa.select(e.id).where(e.id > after, _FOUND).order_by(e.id).limit(limit)
    return list(connection.execute(query).scalars())


def _live(connection: sa.Connection, ids: Sequence[str]) -> dict[str, frozenset[str]]:
    return {
        entry_id: _FOUND_BY[bool(latent), bool(picture)]
        for some in chunks(ids)
        for entry_id, latent, picture in connection.execute(_LIVE_OF, {"ids": some}).all()
    }


def _placed(connection: sa.Connection, ids: Sequence[str]) -> tuple[list[IndexItem], dict[str, frozenset[str]]]:
    rows = [row for some in chunks(sorted(ids)) for row in connection.execute(_ITEMS_OF, {"ids": some}).all()]
    return _as_items(connection, rows), {row.id: _FOUND_BY[bool(row.latent), bool(row.picture)] for row in rows}


def _as_items(connection: sa.Connection, rows: Sequence[Any]) -> list[IndexItem]:
    """Return the items of rows of _INDEXED, in the rows' order."""
    found_by = {row.id: _FOUND_BY[bool(row.latent), bool(row.picture)] for row in rows}
    named: dict[str, dict[str, Any]] = {id_: {} for id_ in found_by}
    for ids in chunks(named):
        for row in connection.execute(_VECTORS_OF, {"ids": ids}).all():
            if (IMAGE if row.name == IMAGE else PROMPT) in found_by[row.entry_id]:
                named[row.entry_id] |= _vector_of(row)
    return [
        IndexItem(
            row.id,
            named[row.id],
            compat=_compat(row.weights_hash, row.sampler, row.dtype, Size(row.width, row.height), row.frames),
            # one string for all entries of a scope or an encoder: a start loads hundreds of thousands
            owner=sys.intern(row.owner),
            encoder_hash=sys.intern(row.encoder_hash),
        )
        for row in rows
    ]


@lru_cache(256)
def _compat(weights_hash: str, sampler: str, dtype: str, size: Size, frames: int) -> str:
    """Return the key that index searches filter by. T is not part of that key."""
    return str(CompatKey(weights_hash, sampler, dtype, size, steps=0, frames=frames))


def _vector_of(row: Any) -> dict[str, Vector]:
    """Return the row's vector by name; empty for a vector that this version cannot read."""
    try:
        return {row.name: vector_from(row.data)}
    except (ValueError, TypeError) as error:
        unreadable(vectors.name, row.entry_id, error)
        return {}


def _unembedded(connection: sa.Connection, limit: int, after: str) -> list[Entry]:
    query = sa.select(entries).where(e.id > after, _HAS_PICTURE, ~_IS_EMBEDDED, IS_READABLE).order_by(e.id).limit(limit)
    return with_states(connection, connection.execute(query).all())


def _embedded(connection: sa.Connection, named: Mapping[str, bytes], encoder_hash: str) -> dict[str, bool]:
    rows = (row for some in chunks(named) for row in connection.execute(_ENCODERS_OF, {"ids": some}))
    by = {row.id: row.encoder_hash for row in rows}
    kept = [entry_id for entry_id in named if by.get(entry_id) in ("", encoder_hash)]
    for some in chunks(entry_id for entry_id in kept if not by[entry_id]):
        connection.execute(_SET_ENCODER, {"ids": some, "by": encoder_hash})
    for some in chunks(kept):
        connection.execute(_DROP_IMAGES, {"ids": some})
        images = [{"entry_id": entry_id, "name": IMAGE, "data": named[entry_id]} for entry_id in some]
        connection.execute(ADD_VECTORS, images)
    return {entry_id: entry_id in kept for entry_id in by}


class Indexed:
    """The part of a catalog's entries that the index must hold."""

    _database: Database

    async def items(self, after: str = "", limit: int = 1000) -> list[IndexItem]:
        """Return a page, by entry id, of the items that the index must hold.

        These are entries with a live latent or an embedded image, each with the vectors of what the entry has.
        """
        return await self._database.read(_items, after, limit)

    async def items_of(self, ids: Sequence[str]) -> list[IndexItem]:
        """Return the items of these entries; entries without a searchable part are left out."""
        return await self._database.read(_items_of, ids)

    async def placed(self, ids: Sequence[str]) -> tuple[list[IndexItem], dict[str, frozenset[str]]]:
        """Return `items_of(ids)` and `live(ids)`; `live` is read first."""
        return await self._database.read(_placed, ids)

    async def live_ids(self, after: str = "", limit: int = 1000) -> list[str]:
        """Return a page, in order, of the ids that the index must hold."""
        return await self._database.read(_live_ids, after, limit)

    async def live(self, ids: Sequence[str]) -> dict[str, frozenset[str]]:
        """Return the given entries that the index must hold, each with what it is found by: `prompt`, `image`."""
        return await self._database.read(_live, ids)

    async def unembedded(self, limit: int = 100, after: str = "") -> list[Entry]:
        """Return a page, by entry id, of entries whose image jobs may start from but which is not embedded yet."""
        return await self._database.read(_unembedded, limit, after)

    async def embedded(self, vectors: Mapping[str, bytes], encoder_hash: str) -> dict[str, bool]:
        """Store the embeddings of these entries' images: id → float32, little endian.

        The result is False, and nothing is stored, for an entry whose prompt was embedded by another encoder. Entries
        that are gone or have no image are left out.
        """
        return await self._database.write(_embedded, vectors, encoder_hash, durable=False)
