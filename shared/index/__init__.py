"""The vector index: which entries are nearest to an embedding."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from shared.domain.errors import ConfigurationError, InvalidRequestError
from shared.domain.types import Hit, IndexFilter, IndexItem, Vector


class Index(Protocol):
    """Trouble of a server behind it is an UnavailableError."""

    process_local: bool

    async def search(self, name: str, vector: Vector, where: IndexFilter, limit: int) -> list[Hit]:
        """The `limit` nearest entries by cosine of the named vector, best first, compared in float32."""
        ...

    async def add(self, items: Sequence[IndexItem]) -> None:
        """Adds or replaces, in one batch; the next search sees it. Repeating an add that failed is fine."""
        ...

    async def remove(self, entry_ids: Sequence[str]) -> None:
        """In one batch; unknown ids are fine."""
        ...

    async def count(self) -> int:
        """Entries with at least one vector."""
        ...

    def ids(self) -> AsyncIterator[list[str]]:
        """Pages of all entry ids, in any order; what comes or goes meanwhile may be among them or not."""
        ...

    async def missing(self, entry_ids: Sequence[str]) -> set[str]:
        """Which of these no search can find: not there, or half forgotten by a server that was killed. Adding the
        latter again may change nothing unless they are removed first."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Hnsw:
    """How a server builds and searches its graphs."""

    ef: int = -1
    """Candidates kept while searching; -1: 8 × the limit, within 100 and 500."""
    ef_construction: int = 128
    max_connections: int = 32
    exact_up_to: int = 40_000
    """A filter that leaves fewer entries than this (at least 1,000) is answered by comparing them all."""


def unit(vector: Vector, what: str) -> Vector:
    """float32 of length 1 (a zero vector stays zero, and is similar to nothing)."""
    row = np.asarray(vector, np.float32)
    if row.ndim != 1 or row.size == 0 or not np.isfinite(row).all():
        raise InvalidRequestError(what, "must be one row of finite numbers", f"shape {row.shape}")
    length = float(np.linalg.norm(row))
    return row / np.float32(length) if length > 0 else row


async def open_index(url: str, hnsw: Hnsw | None = None) -> Index:
    """`memory:` or `weaviate://host:port?grpc_port=…`."""
    match url.split(":", 1)[0]:
        case "memory":
            from shared.index.memory import MemoryIndex

            return MemoryIndex()
        case "weaviate":
            try:
                from shared.index.weaviate import WeaviateIndex
            except ImportError as error:
                raise ConfigurationError(f"index_url: weaviate: {error}; install afterimage[cluster]") from error
            return await WeaviateIndex.open(url, hnsw or Hnsw())
        case other:
            raise ConfigurationError(f"index_url: no index speaks {other!r}; use memory: or weaviate://host:port")
