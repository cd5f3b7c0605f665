"""A read that was begun early is the one that is wanted, or it changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shared.blobs import Blobs, open_blobs
from shared.blobs.ahead import ReadAhead
from shared.domain.errors import BlobCorruptError, BlobMissingError, BlobUnavailableError

KEY, OTHER = "states/a", "states/b"


@pytest.fixture
async def blobs(tmp_path: Path) -> AsyncIterator[Blobs]:
    opened = await open_blobs(f"file:{tmp_path}")
    yield opened
    await opened.close()


@pytest.fixture
def reads(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys in the order in which they were read."""
    get, seen = blobs.get, list[str]()

    async def noted(key: str, sha256: str = "") -> bytes:
        seen.append(key)
        return await get(key, sha256)

    monkeypatch.setattr(blobs, "get", noted)
    return seen


async def test_the_blob_that_was_named_is_read_once_and_at_once(blobs: Blobs, reads: list[str]) -> None:
    sha256 = await blobs.put(KEY, b"latent")
    ahead = ReadAhead(blobs, KEY, sha256)
    await asyncio.sleep(0)
    assert reads == [KEY]
    assert await ahead.get(KEY, sha256) == b"latent"
    assert reads == [KEY]
    assert await ahead.get(KEY, sha256) == b"latent"  # as often as anyone likes
    assert reads == [KEY, KEY]


async def test_another_blob_is_read_whatever_was_named(blobs: Blobs, reads: list[str]) -> None:
    named, wanted = await blobs.put(KEY, b"named"), await blobs.put(OTHER, b"wanted")
    assert await ReadAhead(blobs, KEY, named).get(OTHER, wanted) == b"wanted"
    assert await ReadAhead(blobs).get(OTHER, wanted) == b"wanted"
    with pytest.raises(BlobCorruptError):  # the same key under another hash is another blob
        await ReadAhead(blobs, KEY, named).get(KEY, wanted)


async def test_a_read_that_failed_is_done_again(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    sha256 = await blobs.put(KEY, b"latent")
    get, failed = blobs.get, list[str]()

    async def away_at_first(key: str, sha256: str = "") -> Any:
        if not failed:
            failed.append(key)
            raise BlobUnavailableError("away")
        return await get(key, sha256)

    monkeypatch.setattr(blobs, "get", away_at_first)
    assert await ReadAhead(blobs, KEY, sha256).get(KEY, sha256) == b"latent"
    assert failed == [KEY]
    with pytest.raises(BlobMissingError):
        await ReadAhead(blobs, OTHER, sha256).get(OTHER, sha256)


async def test_what_nobody_wants_is_let_go(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = asyncio.Event()

    async def hangs(*_: str) -> bytes:
        try:
            await asyncio.sleep(60)
        finally:
            gone.set()
        return b""

    monkeypatch.setattr(blobs, "get", hangs)
    ahead = ReadAhead(blobs, KEY, "0" * 64)
    await asyncio.sleep(0)
    ahead.close()
    ahead.close()
    await asyncio.wait_for(gone.wait(), 5)
