"""The vector index: finds the entries nearest to an embedding."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from shared.domain.errors import ConfigurationError, InvalidRequestError
from shared.domain.types import Hit, IndexFilter, IndexItem, Vector

_RULE = "must be one row of finite numbers"


class Index(Protocol):
    """A vector index. Failures of its server raise UnavailableError."""

    process_local: bool

    async def search(self, name: str, vector: Vector, where: IndexFilter, limit: int) -> list[Hit]:
        """Return the `limit` nearest entries by cosine of the named vector, best first, compared in float32."""
        ...

    async def add(self, items: Sequence[IndexItem]) -> None:
        """Add or replace items in one batch; the next search sees them. Repeating a failed add is safe."""
        ...

    async def remove(self, entry_ids: Sequence[str]) -> None:
        """Remove entries in one batch; ignore unknown ids."""
        ...

    async def count(self) -> int:
        """Return the number of entries with at least one vector."""
        ...

    def ids(self) -> AsyncIterator[list[str]]:
        """Yield pages of all entry ids, in any order; concurrent adds and removes may be included or not."""
        ...

    async def missing(self, entry_ids: Sequence[str]) -> set[str]:
        """Return the given entries that no search can find.

        They are absent, or a killed server lost their positions in its graphs. In the second case, another add may have
        no effect unless the entry is removed first.
        """
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Hnsw:
    """Parameters of a server's graphs."""

    ef: int = -1
    """Candidates kept while searching; -1 means 8 × the limit, between 100 and 500."""
    ef_construction: int = 128
    max_connections: int = 32
    exact_up_to: int = 40_000
    """Entries left by a filter up to which the server compares them all (at least 1,000)."""


def unit(vector: Vector, what: str) -> Vector:
    """Return the vector as float32 of length 1; a zero vector stays zero, and is similar to no vector."""
    one: Vector = units(one_row(vector, what)[None], what)[0]
    return one


def one_row(vector: Vector, what: str) -> Vector:
    """Return the vector as float32; raise InvalidRequestError for another shape than one row of numbers."""
    row = np.asarray(vector, np.float32)
    if row.ndim != 1 or row.size == 0:
        raise InvalidRequestError(what, _RULE, f"shape {row.shape}")
    return row


def units(rows: npt.NDArray[np.float32], what: str) -> npt.NDArray[np.float32]:
    """Return float32 rows scaled to length 1; zero rows stay zero. One row's result does not depend on the others."""
    if not np.isfinite(rows).all():
        raise InvalidRequestError(what, _RULE, f"shape {rows.shape[1:]}")
    lengths = np.sqrt(np.vecdot(rows, rows))[:, None]
    return (rows / np.where(lengths > 0, lengths, np.float32(1.0))).astype(np.float32, copy=False)


async def open_index(url: str, hnsw: Hnsw | None = None) -> Index:
    """Open `memory:` or `weaviate://host:port?grpc_port=…`."""
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
            raise ConfigurationError(
                f"index_url: scheme must be memory or weaviate (got {other!r}); use memory: or weaviate://host:port"
            )
