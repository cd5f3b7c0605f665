"""The collection behind the Weaviate index: on which server it is, what it is made of, and of which version."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from weaviate import WeaviateAsyncClient
from weaviate.auth import Auth
from weaviate.classes.config import Configure, DataType, Property, Reconfigure, Tokenization, VectorDistances
from weaviate.classes.data import DataObject
from weaviate.classes.query import Filter
from weaviate.config import AdditionalConfig, GrpcConfig, Timeout
from weaviate.connect import ConnectionParams
from weaviate.exceptions import UnexpectedStatusCodeError

from shared.errors import ConfigurationError
from shared.index import Hnsw
from shared.telemetry import log
from shared.types import IndexItem, Vector

VERSION = 1
"""Of what is stored and under which names: another version lives in another collection, which a rebuild fills."""
FAMILY = "Afterimage_v"
COLLECTION = f"{FAMILY}{VERSION}"
FILTERED = ("compat", "owner", "encoder_hash")
_CHANNEL = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1000)]
"""After a restart of the server it is found again within a second (by default that can take two minutes)."""


def client_of(url: str, *, connect_s: float, read_s: float, write_s: float) -> WeaviateAsyncClient:
    """`weaviate://host:port?grpc_port=50051`; `secure=true` for TLS, `weaviate://:KEY@host:port` for an API key.

    ConfigurationError for anything else; it never quotes the URL, which may hold a key.
    """
    try:
        parts = urlsplit(url)
        wish = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        host, secure = parts.hostname or "", wish.pop("secure", "false") == "true"
        grpc_port = int(wish.pop("grpc_port", "50051"))
        if wish:
            raise ValueError(f"unknown parameters {sorted(wish)}")
        at = ConnectionParams.from_params(host, parts.port or 8080, secure, host, grpc_port, secure)
    except ValueError as error:
        raise ConfigurationError("index_url: use weaviate://host:port?grpc_port=50051&secure=false") from error
    return WeaviateAsyncClient(
        at,
        auth_client_secret=Auth.api_key(unquote(parts.password)) if parts.password else None,
        additional_config=AdditionalConfig(
            timeout=Timeout(init=connect_s, query=read_s, insert=write_s),
            grpc_config=GrpcConfig(channel_options=_CHANNEL),
        ),
        skip_init_checks=True,  # they would ask a package registry for news
    )


def uuid_of(entry_id: str) -> uuid.UUID:
    """Under which id the server knows an entry: always the same, so that adding again replaces."""
    return uuid.uuid5(uuid.NAMESPACE_OID, f"afterimage:{entry_id}")


def space_of(name: str, vector: Vector) -> str:
    """The named vector in which this one is stored and searched: `whole_512`."""
    return f"{name}_{len(vector)}"


def object_of(item: IndexItem, vectors: dict[str, Vector]) -> Any:
    """The item as the server keeps it; `vectors` by name, of length 1."""
    said: Any = {space_of(name, vector): vector for name, vector in vectors.items()}
    kept = {"entry_id": item.entry_id, "spaces": sorted(said), **{name: getattr(item, name) for name in FILTERED}}
    return DataObject(uuid=uuid_of(item.entry_id), properties=kept, vector=said)


class EntryCollection:
    """Made when first needed, one named vector after the other."""

    def __init__(self, client: WeaviateAsyncClient, hnsw: Hnsw) -> None:
        self.objects = client.collections.get(COLLECTION)
        self._collections = client.collections
        self._hnsw = hnsw

    async def spaces(self) -> dict[str, Any] | None:
        """Its named vectors; None when there is no collection. ConfigurationError for one that is not ours."""
        try:
            config = await self.objects.config.get()
        except UnexpectedStatusCodeError as error:
            if error.status_code == 404:
                return None
            raise
        if missing := set(FILTERED) - {each.name for each in config.properties if each.index_filterable}:
            raise ConfigurationError(
                f"index_url: the collection {COLLECTION} has no filter for {', '.join(sorted(missing))}, so it is not "
                "ours; delete it and run `afterimage cache rebuild-index`"
            )
        return dict(config.vector_config or {})

    async def ensure(self, wanted: set[str]) -> None:
        """Makes the collection, or the named vectors it lacks (another process may be doing the same)."""
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

    async def findable(self, entry_ids: Sequence[str]) -> set[str]:
        """Which of these (at most 1,000) are found by searches in every space they have a vector for.

        A server that is killed keeps every object it confirmed, but forgets the places in its graphs of those of the
        last second (measured with 1.35.2); adding them again changes nothing there unless they are removed first.
        """
        known = await self.spaces()
        if not known or not entry_ids:
            return set()
        them = Filter.by_id().contains_any([uuid_of(entry_id) for entry_id in entry_ids])
        stored = await self.objects.query.fetch_objects(
            filters=them, limit=len(entry_ids), return_properties=["entry_id", "spaces"]
        )
        spaces_of: dict[str, Any] = {
            str(each.properties["entry_id"]): each.properties["spaces"] for each in stored.objects
        }
        found = set(spaces_of)
        for space in {space for spaces in spaces_of.values() for space in spaces or ()}:
            expected = {entry_id for entry_id, spaces in spaces_of.items() if space in (spaces or ())}
            found -= expected - (await self._in_graph(space, expected) if space in known else set())
        return found

    async def _in_graph(self, space: str, entry_ids: set[str]) -> set[str]:
        anywhere = [1.0] + [0.0] * (int(space.rpartition("_")[2]) - 1)
        found = await self.objects.query.near_vector(
            anywhere,
            target_vector=space,
            filters=Filter.by_id().contains_any([uuid_of(entry_id) for entry_id in entry_ids]),  # few: exact
            limit=len(entry_ids),
            return_properties=["entry_id"],
        )
        return {str(each.properties["entry_id"]) for each in found.objects}

    async def adopt(self) -> None:
        """Says when what is stored is of another version, and brings what can be changed to the settings."""
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
            tokenization=Tokenization.FIELD,  # whole values, compared as they are
            index_filterable=name in FILTERED,
            index_searchable=False,
        )
        for name in ("entry_id", *FILTERED)
    ]
