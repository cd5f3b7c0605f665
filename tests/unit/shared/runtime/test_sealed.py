"""Answers stay in memory in a bounded number and for a bounded time, also while nobody asks, and sealed by the text."""

from __future__ import annotations

import asyncio

from shared.runtime.sealed import SealedCache


async def test_an_idle_process_forgets_too() -> None:
    kept = SealedCache(2)
    for text in ("a", "b", "c"):
        kept.put("us", text, text.encode())
    assert [kept.get("us", text) for text in ("a", "b", "c")] == [None, b"b", b"c"]
    kept = SealedCache(2, seconds=0.05)
    kept.put("us", "c", b"3")
    for further in ("d", "e"):
        async with asyncio.timeout(5.0):
            while vars(kept._sealed)["_Cache__data"]:  # without a look through the cache's methods, which would tidy it
                await asyncio.sleep(0.01)
        kept.put("us", further, b"4")


async def test_none_are_kept_where_none_are_wanted() -> None:
    kept = SealedCache(0)
    kept.put("us", "a", b"1")
    assert kept.get("us", "a") is None
    assert not kept._sealed


async def test_only_owner_and_text_together_open_an_answer() -> None:
    kept, answer = SealedCache(8), b"a fox" * 500
    kept.put("tenant:a", "a fox", answer)
    kept.put("tenant:b", "a fox", answer)
    kept.put("tenant:a", "", b"")
    assert kept.get("tenant:a", "a fox") == answer
    assert kept.get("tenant:a", "") == b""
    assert kept.get("tenant:", "aa fox") is None
    assert kept.get("tenant:a", "a fo") is None


async def test_it_holds_neither_text_nor_answer() -> None:
    """Not even the same bytes twice: each answer has a nonce of its own, each process other names."""
    found = set[bytes]()
    for _ in range(2):
        kept = SealedCache(8)
        for owner in ("tenant:a", "tenant:b", "tenant:b"):
            kept.put(owner, "a fox", b"a fox in the snow" + bytes(64))
            found |= {part for both in kept._sealed.items() for part in both}
    assert len(found) == 10
    for part in found:
        assert b"fox" not in part
        assert len(set(part)) > 16  # the zeros of the answer are not there either
