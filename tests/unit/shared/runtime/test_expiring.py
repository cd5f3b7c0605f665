"""Answers stay in memory in a bounded number and for a bounded time, also while nobody asks."""

from __future__ import annotations

import asyncio

from shared.runtime.expiring import ExpiringCache


async def test_an_idle_process_forgets_too() -> None:
    kept = ExpiringCache[str, int](2)
    kept.update({"a": 1, "b": 2, "c": 3})
    assert dict(kept) == {"b": 2, "c": 3}
    kept = ExpiringCache[str, int](2, seconds=0.05)
    kept["c"] = 3
    for further in ("d", "e"):
        async with asyncio.timeout(5.0):
            while vars(kept)["_Cache__data"]:  # without a look through the cache's methods, which would tidy it
                await asyncio.sleep(0.01)
        kept[further] = 4


async def test_none_are_kept_where_none_are_wanted() -> None:
    kept = ExpiringCache[str, int](0)
    kept["a"] = 1
    assert len(kept) == 0
