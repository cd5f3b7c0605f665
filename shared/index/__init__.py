"""The vector index: which entries are nearest to an embedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shared.errors import ConfigurationError
from shared.types import Hit, IndexFilter, IndexItem, Vector

VECTOR_NAMES = ("whole", "object", "background", "image")


class Index(Protocol):
    process_local: bool

    async def search(self, name: str, vector: Vector, where: IndexFilter, limit: int) -> list[Hit]:
        """The `limit` nearest entries by cosine of the named vector, best first, re-scored in float32."""
        ...

    async def add(self, items: Sequence[IndexItem]) -> None:
        """Adds or replaces, in one batch."""
        ...

    async def remove(self, entry_ids: Sequence[str]) -> None:
        """In one batch; unknown ids are fine."""
        ...

    async def count(self) -> int: ...

    async def close(self) -> None: ...


async def open_index(url: str) -> Index:
    """`memory:` (later `weaviate://host:port`)."""
    scheme = url.split(":", 1)[0]
    if scheme == "memory":
        from shared.index.memory import MemoryIndex

        return MemoryIndex()
    raise ConfigurationError(f"index_url: no index speaks {scheme!r}; use memory:")
