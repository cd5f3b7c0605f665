"""A vector index in Weaviate: one collection, one object per entry, one named vector per kind and length of embedding.

A named vector has a name like `whole_512`, because another encoder may produce vectors of another length, which are
searched separately. Vectors are not compressed. The server computes similarities as float32 cosines (measured against
float64 at 512 dimensions: less than 1e-6 off), so they are not recomputed here.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from weaviate.classes.query import Filter, MetadataQuery
from weaviate.exceptions import WeaviateInsertManyAllFailedError

from shared.domain.errors import UnavailableError
from shared.domain.types import Hit, IndexFilter, IndexItem, Vector
from shared.index import Hnsw, unit
from shared.index.weaviate.collection import EntryCollection, object_of, space_of, uuid_of
from shared.index.weaviate.connection import Connection, client_of, place_of
from shared.index.weaviate.findable import findable
from shared.runtime.telemetry import log

CONNECT_S, SEARCH_S, WRITE_S = 2.0, 2.0, 30.0
"""Time limits in seconds of one operation as a whole (writes: of each batch), including the client's own retries."""
BATCH = 256
"""Objects per insertion, each with at most 8 KB of vectors."""
PAGE = 1000
CHANGING, CHANGING_S = "store is read-only due to: UpdateVectorIndexConfigs", 0.1
"""The server's reply to a write while another process adds a named vector, and the seconds before a retry."""


class WeaviateIndex:
    """Index in one collection; any number of processes may share it."""

    process_local = False

    def __init__(self, url: str, hnsw: Hnsw) -> None:
        client = client_of(url, connect_s=CONNECT_S, read_s=WRITE_S, write_s=WRITE_S)
        self._connection = Connection(client, place_of(url))
        self._collection = EntryCollection(client, hnsw)
        self._objects = self._collection.objects

    @classmethod
    async def open(cls, url: str, hnsw: Hnsw) -> WeaviateIndex:
        """Connect as `client_of` does; an unreachable server is retried later, because services start without it."""
        index = cls(url, hnsw)
        try:
            async with index._connection.within(CONNECT_S + SEARCH_S, "connect"):
                await index._collection.adopt()
        except UnavailableError as error:
            log("index").warning("index unreachable, will retry", error=str(error))
        except BaseException:
            await index.close()
            raise
        return index

    async def search(self, name: str, vector: Vector, where: IndexFilter, limit: int) -> list[Hit]:
        query: Any = unit(vector, "vector")
        space = space_of(name, query)
        if limit <= 0:
            return []
        async with self._connection.within(SEARCH_S, "search"):
            near = partial(
                self._objects.query.near_vector,
                query,
                target_vector=space,
                filters=_filter(where),
                limit=limit,
                return_metadata=MetadataQuery(distance=True),
                return_properties=["entry_id"],
            )
            found = await self._collection.opened(near, space)
        if found is None:
            return []  # no vector of this kind was ever added
        hits = [Hit(str(each.properties["entry_id"]), _cosine(each.metadata.distance)) for each in found.objects]
        return sorted(hits, key=lambda hit: -hit.similarity)

    async def add(self, items: Sequence[IndexItem]) -> None:
        objects: dict[str, Any] = {}
        for item in items:
            vectors = {name: unit(vector, f"vectors[{name}]") for name, vector in item.vectors.items()}
            objects[item.entry_id] = object_of(item, vectors)
        bare = [entry_id for entry_id, each in objects.items() if not each.vector]
        full = [each for each in objects.values() if each.vector]
        if bare:  # an item without vectors replaces the entry, and cannot be found
            await self.remove(bare)
        if full:
            async with self._connection.within(WRITE_S, "preparing the collection"):
                await self._collection.ensure({space for each in full for space in each.vector})
        for at in range(0, len(full), BATCH):
            async with self._connection.within(WRITE_S, "add"):
                refused = await self._refused(full[at : at + BATCH])
            if refused:
                raise UnavailableError(f"index: {len(refused)} entries not added, first: {refused[0]}"[:400])

    async def _refused(self, objects: Sequence[Any]) -> list[str]:
        """Insert objects, retried while another process changes the collection; return other errors' messages."""
        while True:
            try:
                done = await self._objects.data.insert_many(objects)
                said = [error.message for error in done.errors.values()]
            except WeaviateInsertManyAllFailedError as error:
                if CHANGING not in str(error):
                    raise
                said = [CHANGING]
            if not any(CHANGING in message for message in said):
                return said
            await asyncio.sleep(CHANGING_S)

    async def remove(self, entry_ids: Sequence[str]) -> None:
        wanted = [uuid_of(entry_id) for entry_id in dict.fromkeys(entry_ids)]
        for at in range(0, len(wanted), PAGE):
            async with self._connection.within(WRITE_S, "remove"):
                these = Filter.by_id().contains_any(wanted[at : at + PAGE])
                done = await self._collection.opened(partial(self._objects.data.delete_many, where=these))
            if done is None:
                return
            if done.failed:
                raise UnavailableError(f"index: {done.failed} entries not removed", retry_after_s=1.0)

    async def count(self) -> int:
        async with self._connection.within(SEARCH_S, "count"):
            if await self._collection.spaces() is None:
                return 0
            counted = await self._collection.opened(partial(self._objects.aggregate.over_all, total_count=True))
        return (counted.total_count or 0) if counted else 0

    async def ids(self) -> AsyncIterator[list[str]]:
        after: uuid.UUID | None = None
        while True:
            async with self._connection.within(WRITE_S, "list"):
                if await self._collection.spaces() is None:
                    return
                fetch = partial(self._objects.query.fetch_objects, limit=PAGE, return_properties=["entry_id"])
                page = await self._collection.opened(partial(fetch, after=after))
            if page is None or not page.objects:
                return
            yield [str(each.properties["entry_id"]) for each in page.objects]
            after = page.objects[-1].uuid

    async def missing(self, entry_ids: Sequence[str]) -> set[str]:
        found: set[str] = set()
        wanted = [*dict.fromkeys(entry_ids)]
        for at in range(0, len(wanted), PAGE):
            async with self._connection.within(WRITE_S, "find missing entries"):
                found |= await findable(self._collection, wanted[at : at + PAGE])
        return set(wanted) - found

    async def close(self) -> None:
        await self._connection.close()


def _filter(where: IndexFilter) -> Any:
    conditions = []
    if where.compat:
        conditions.append(Filter.by_property("compat").equal(where.compat))
    if where.owners:
        conditions.append(Filter.by_property("owner").contains_any(list(where.owners)))
    if where.encoder_hash:
        conditions.append(Filter.by_property("encoder_hash").equal(where.encoder_hash))
    return Filter.all_of(conditions) if conditions else None


def _cosine(distance: float | None) -> float:
    return min(1.0, max(-1.0, 1.0 - (2.0 if distance is None else distance)))
