"""The collection of the Weaviate index: its properties, named vectors and version."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from weaviate import WeaviateAsyncClient
from weaviate.classes.config import Configure, DataType, Property, Reconfigure, Tokenization, VectorDistances
from weaviate.classes.data import DataObject
from weaviate.exceptions import UnexpectedStatusCodeError, WeaviateDeleteManyError, WeaviateQueryError

from shared.domain.errors import ConfigurationError
from shared.domain.types import IndexItem, Vector
from shared.index import Hnsw
from shared.runtime.telemetry import log

VERSION = 1
"""Version of the stored format and names. Another version has another collection, which a rebuild fills."""
FAMILY = "Afterimage_v"
COLLECTION = f"{FAMILY}{VERSION}"
FILTERED = ("compat", "owner", "encoder_hash")
UNOPENED = ("tried to browse non-existing index", "cannot find index for class")
UNKNOWN = ("could not find class", "does not have named vector")
"""The server's replies about a collection that it has listed and not opened yet, and about one that it did not list."""
OPENING_S = 0.05
"""Seconds before a retry of a call that got one of these replies."""

T = TypeVar("T")


def uuid_of(entry_id: str) -> uuid.UUID:
    """Return the server's id of an entry; it is stable, so that another add replaces the object."""
    return uuid.uuid5(uuid.NAMESPACE_OID, f"afterimage:{entry_id}")


def space_of(name: str, vector: Vector) -> str:
    """Return the name of the named vector that stores vectors of this name and length: `whole_512`."""
    return f"{name}_{len(vector)}"


def object_of(item: IndexItem, vectors: dict[str, Vector]) -> Any:
    """Return the item as the server stores it; `vectors` by name, of length 1."""
    said: Any = {space_of(name, vector): vector for name, vector in vectors.items()}
    kept = {"entry_id": item.entry_id, "spaces": sorted(said), **{name: getattr(item, name) for name in FILTERED}}
    return DataObject(uuid=uuid_of(item.entry_id), properties=kept, vector=said)


class EntryCollection:
    """The collection of entries, created on first use; its named vectors are added one by one."""

    def __init__(self, client: WeaviateAsyncClient, hnsw: Hnsw) -> None:
        self.objects = client.collections.get(COLLECTION)
        self._collections = client.collections
        self._hnsw = hnsw

    async def spaces(self) -> dict[str, Any] | None:
        """Return the named vectors, None without a collection; raise ConfigurationError for a foreign collection."""
        try:
            config = await self.objects.config.get()
        except UnexpectedStatusCodeError as error:
            if error.status_code == 404:
                return None
            raise
        if missing := set(FILTERED) - {each.name for each in config.properties if each.index_filterable}:
            raise ConfigurationError(
                f"index_url: the collection {COLLECTION} has no filter for {', '.join(sorted(missing))}, so another "
                "program made it; delete it and run `afterimage cache rebuild-index`"
            )
        return dict(config.vector_config or {})

    async def opened(self, ask: Callable[[], Awaitable[T]], space: str = "") -> T | None:
        """Return the server's reply; None if the schema lists no collection, or no named vector `space`.

        The schema lists a new collection some milliseconds before the server opens it, so such replies are retried.
        They never mean "empty": a server that opens a stored collection may reply alike, and "empty" would then hide
        its entries. The caller's time limit ends the retries.
        """
        while True:
            try:
                return await ask()
            except (WeaviateQueryError, WeaviateDeleteManyError) as error:
                known = await self.spaces()
                if known is None or (space and space not in known):
                    return None
                if not any(reply in str(error) for reply in UNOPENED + UNKNOWN):
                    raise
                await asyncio.sleep(OPENING_S)

    async def ensure(self, wanted: set[str]) -> None:
        """Create the collection or its missing named vectors; another process may be doing the same."""
        for last in (False, False, True):
            known = await self.spaces()
            if known is not None and wanted <= known.keys():
                return
            new = [self._named(name) for name in sorted(wanted - (known or {}).keys())]
            try:
                if known is None:
                    await self._collections.create(COLLECTION, properties=_properties(), vector_config=new)
                else:
                    await self.objects.config.add_vector(vector_config=new)
            except UnexpectedStatusCodeError:
                if last:
                    raise

    def _named(self, name: str) -> Any:
        graph = Configure.VectorIndex.hnsw(
            distance_metric=VectorDistances.COSINE,
            ef=self._hnsw.ef,
            ef_construction=self._hnsw.ef_construction,
            max_connections=self._hnsw.max_connections,
            flat_search_cutoff=self._hnsw.exact_up_to,
            quantizer=Configure.VectorIndex.Quantizer.none(),
        )
        return Configure.Vectors.self_provided(name=name, vector_index_config=graph)

    async def adopt(self) -> None:
        """Log if the stored collection has another version, and update the changeable parameters to the settings."""
        others = [name for name in await self._collections.list_all() if name.startswith(FAMILY)]
        if others and COLLECTION not in others:
            hint = "run `afterimage cache rebuild-index`; the old collection may be deleted then"
            log("index").warning(f"the index is of another version: {hint}", found=others, expected=COLLECTION)
        ef, cutoff = self._hnsw.ef, self._hnsw.exact_up_to
        for name, config in (await self.spaces() or {}).items():
            graph = config.vector_index_config
            if (graph.ef, graph.flat_search_cutoff) != (ef, cutoff):
                wish = Reconfigure.VectorIndex.hnsw(ef=ef, flat_search_cutoff=cutoff)
                changed = Reconfigure.Vectors.update(name=name, vector_index_config=wish)
                await self.objects.config.update(vector_config=changed)


def _properties() -> list[Property]:
    plain = [Property(name="spaces", data_type=DataType.TEXT_ARRAY, index_filterable=False, index_searchable=False)]
    return plain + [
        Property(
            name=name,
            data_type=DataType.TEXT,
            tokenization=Tokenization.FIELD,  # whole values, compared unchanged
            index_filterable=name in FILTERED,
            index_searchable=False,
        )
        for name in ("entry_id", *FILTERED)
    ]
