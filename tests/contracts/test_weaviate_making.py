"""Calls of one process while another makes the server's collection."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from shared.domain.types import IndexFilter
from shared.index import Hnsw
from shared.index.weaviate import WeaviateIndex
from tests.contracts.nouns import a_vector
from tests.contracts.servers import url_of
from tests.contracts.test_weaviate import item

ALL = IndexFilter()


async def test_calls_while_another_process_makes_the_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The schema lists a collection before the server opens it: calls that arrive in between are not refused."""
    monkeypatch.setattr("shared.index.weaviate.SEARCH_S", 30.0)
    for number in range(6):  # each a collection of its own: the server replies otherwise while it drops one
        monkeypatch.setattr("shared.index.weaviate.collection.COLLECTION", f"Made{number}")
        writer, reader = WeaviateIndex(url_of("weaviate"), Hnsw()), WeaviateIndex(url_of("weaviate"), Hnsw())
        try:
            assert (await writer.count(), await reader.count()) == (0, 0)
            begun = asyncio.create_task(every_few_milliseconds(reader))
            await asyncio.sleep(0.1)  # the server looks for a collection for as long before it says that it has none
            await writer.add([item("a", 1), item("b", 2)])
            begun.cancel()
            await asyncio.gather(*await begun)
            assert sorted(hit.entry_id for hit in await reader.search("whole", a_vector(2), ALL, 5)) == ["a", "b"]
            assert await reader.missing(["a", "b"]) == set()
        finally:
            await writer._connection.client.collections.delete(f"Made{number}")
            await writer.close()
            await reader.close()


async def every_few_milliseconds(index: WeaviateIndex) -> list[asyncio.Task[object]]:
    """Begin a call of one kind after another until cancelled."""

    async def listed() -> list[list[str]]:
        return [page async for page in index.ids()]

    calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
        lambda: index.search("whole", a_vector(1), ALL, 1),
        lambda: index.remove(["c"]),
        lambda: index.missing(["a", "b"]),
        index.count,
        listed,
    ]
    begun: list[asyncio.Task[object]] = []
    with contextlib.suppress(asyncio.CancelledError):
        for call in itertools.cycle(calls):
            begun.append(asyncio.create_task(call()))
            await asyncio.sleep(0.004)
    return begun
