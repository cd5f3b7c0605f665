"""Events of several streams, as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from services.gateway.merging import merged


async def ticks(*items: str, every_s: float = 0.0, error: Exception | None = None) -> AsyncIterator[str]:
    for item in items:
        await asyncio.sleep(every_s)
        yield item
    if error is not None:
        raise error


async def test_items_come_as_they_happen() -> None:
    found = [item async for item in merged([ticks("a", "b", every_s=0.05), ticks("x"), ticks()])]
    assert found == [(1, "x"), (0, "a"), (0, "b")]
    nothing: list[AsyncIterator[str]] = []
    assert [item async for item in merged(nothing)] == []


async def test_an_error_ends_all_streams() -> None:
    before = asyncio.all_tasks()
    both = merged([ticks(*"abc", every_s=10.0), ticks("x", error=ValueError("broken"))])
    assert await anext(both) == (1, "x")
    with pytest.raises(ValueError, match="broken"):
        await anext(both)
    assert asyncio.all_tasks() == before


async def test_a_reader_that_leaves_ends_all_streams() -> None:
    before, both = asyncio.all_tasks(), merged([ticks(*"abc"), ticks(*"xyz", every_s=10.0)])
    assert await anext(both) == (0, "a")
    await both.aclose()
    assert asyncio.all_tasks() == before
