"""What every blob store does for the services."""

from __future__ import annotations

import asyncio
import errno
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shared.blobs import Blobs, digest
from shared.blobs.filesystem import FilesystemBlobs
from shared.domain.errors import BlobCorruptError, BlobMissingError, BlobUnavailableError, InvalidRequestError


async def keys(blobs: Blobs, prefix: str = "") -> set[str]:
    return {blob.key async for blob in blobs.list(prefix)}


@pytest.mark.parametrize("size", [0, 1, 1000, 3_000_000, 17_000_000])
@pytest.mark.parametrize("durable", [True, False])
async def test_what_is_put_comes_back(blobs: Blobs, size: int, durable: bool) -> None:
    data = os.urandom(size)
    sha256 = await blobs.put("pictures/a/1.png", data, durable=durable)
    assert sha256 == digest(data)
    assert await blobs.get("pictures/a/1.png") == data
    assert await blobs.get("pictures/a/1.png", sha256) == data


@pytest.mark.parametrize("size", [0, 1, 1000, 200_000])
async def test_parts_of_a_blob_are_read_alone(blobs: Blobs, size: int) -> None:
    data = os.urandom(size)
    await blobs.put("pictures/a/1.png", data)
    for offset, length in ((0, 1), (0, size + 1), (size // 3, 7), (size // 2, size + 9), (size, 5), (size + 10**9, 5)):
        assert await blobs.read("pictures/a/1.png", offset, length) == data[offset : offset + length]
    parts = [await blobs.read("pictures/a/1.png", at, 333) for at in range(0, min(size, 2000), 333)]
    assert b"".join(parts) == data[: 333 * len(parts)]


@pytest.mark.parametrize(("offset", "length", "field"), [(-1, 5, "offset"), (0, 0, "length"), (0, -1, "length")])
async def test_an_absurd_range_is_refused(blobs: Blobs, offset: int, length: int, field: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{field}: must be at least"):
        await blobs.read("a", offset, length)


async def test_putting_again_replaces(blobs: Blobs) -> None:
    await blobs.put("a", b"old")
    sha256 = await blobs.put("a", b"new")
    assert await blobs.get("a", sha256) == b"new"


@pytest.mark.parametrize("key", ["nothing", "folder/nothing", "a/b/c", "folder"])
async def test_a_missing_blob_says_so(blobs: Blobs, key: str) -> None:
    await blobs.put("folder/a", b"x")
    await blobs.put("a", b"x")
    with pytest.raises(BlobMissingError, match=key):
        await blobs.get(key)
    with pytest.raises(BlobMissingError, match=key):
        await blobs.read(key, 0, 5)


@pytest.mark.parametrize("size", [100, 200_000])
async def test_a_damaged_blob_says_so(blobs: Blobs, spoil: Callable[[str], None], size: int) -> None:
    sha256 = await blobs.put("states/a", os.urandom(size))
    spoil("states/a")
    with pytest.raises(BlobCorruptError, match="states/a"):
        await blobs.get("states/a")
    with pytest.raises(BlobCorruptError, match="states/a"):
        await blobs.get("states/a", sha256)


@pytest.mark.parametrize("size", [100, 200_000])
@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
async def test_a_store_that_cannot_read_is_away_not_a_hole(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch, size: int, number: int
) -> None:
    """A failing disk, stood in for at the system call: what comes out must be ours and must not say missing."""
    if not isinstance(blobs, FilesystemBlobs):
        pytest.skip("its own servers fail in their own ways")
    await blobs.put("a", os.urandom(size))

    def fails(*_: object, **__: object) -> bytes:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as broken:
        broken.setattr(Path, "read_bytes", fails)
        with pytest.raises(BlobUnavailableError, match=os.strerror(number)) as away:
            await blobs.get("a")
    assert away.value.retry_after_s
    with monkeypatch.context() as broken:
        broken.setattr(os, "rename", fails)
        with pytest.raises(BlobUnavailableError, match=os.strerror(number)):
            await blobs.put("b", b"x")
    with monkeypatch.context() as broken:
        broken.setattr(os, "unlink", fails)
        with pytest.raises(BlobUnavailableError, match=os.strerror(number)):
            await blobs.delete(["a"])
    assert await keys(blobs) == {"a"}


async def test_another_blob_than_expected_says_so(blobs: Blobs) -> None:
    await blobs.put("a", b"one")
    with pytest.raises(BlobCorruptError):
        await blobs.get("a", digest(b"two"))


async def test_deleted_blobs_are_gone_and_missing_ones_are_fine(blobs: Blobs) -> None:
    for key in ("a/1", "a/2", "b"):
        await blobs.put(key, b"x")
    await blobs.delete(["a/1", "b", "never/there", "a/1"])
    assert await keys(blobs) == {"a/2"}
    await blobs.delete([])


async def test_list_by_prefix(blobs: Blobs) -> None:
    stored = {"states/j1/1/5", "states/j1/1/10", "states/j10/1/5", "pictures/j1/1.png", "top"}
    for key in stored:
        await blobs.put(key, b"1234567")
    assert await keys(blobs) == stored
    assert await keys(blobs, "states/") == {key for key in stored if key.startswith("states/")}
    assert await keys(blobs, "states/j1") == {key for key in stored if key.startswith("states/j1")}
    assert await keys(blobs, "states/j1/") == {key for key in stored if key.startswith("states/j1/")}
    assert await keys(blobs, "nothing") == set()


async def test_list_knows_size_and_time(blobs: Blobs) -> None:
    before = time.time() - 5
    await blobs.put("a", b"1234567")
    (blob,) = [blob async for blob in blobs.list()]
    assert blob.bytes == 7
    assert before <= blob.modified_at <= time.time() + 5


async def test_many_blobs_are_listed_once_each(blobs: Blobs) -> None:
    stored = {f"many/{n % 7}/{n}" for n in range(1100)}
    await asyncio.gather(*(blobs.put(key, b"", durable=False) for key in stored))
    listed = [blob.key async for blob in blobs.list("many/")]
    assert (len(listed), set(listed)) == (1100, stored)


async def test_writers_of_one_key_leave_one_whole_blob(blobs: Blobs) -> None:
    versions = [bytes([n]) * 50_000 for n in range(8)]
    writes = [blobs.put("contested", data) for data in versions]
    reads = [blobs.get("contested") for _ in range(8)]
    await blobs.put("contested", versions[0])
    for got in (await asyncio.gather(*writes, *reads))[8:]:
        assert got in versions


async def test_put_and_delete_in_one_folder_at_once(blobs: Blobs) -> None:
    async def come_and_go(n: int) -> None:
        for _ in range(20):
            await blobs.put(f"deep/er/{n}", b"x", durable=False)
            await blobs.delete([f"deep/er/{n}"])

    await asyncio.gather(*(come_and_go(n) for n in range(4)))
    assert await keys(blobs) == set()


async def test_a_signed_url_gives_the_blob_to_anyone_for_a_while(blobs: Blobs) -> None:
    await blobs.put("pictures/a", b"drawn")
    url, brief = await blobs.url("pictures/a", 60.0), await blobs.url("pictures/a", 1.0)
    if isinstance(blobs, FilesystemBlobs):
        assert url is None
        return
    assert url is not None
    assert brief is not None
    assert (await asyncio.to_thread(_fetched, url)) == (200, b"drawn")
    assert (await asyncio.to_thread(_fetched, url.partition("?")[0]))[0] == 403
    await asyncio.sleep(2.1)
    assert (await asyncio.to_thread(_fetched, brief))[0] == 403
    for wrong in (0.0, 8 * 24 * 3600.0):
        with pytest.raises(InvalidRequestError, match="lifetime_s"):
            await blobs.url("pictures/a", wrong)


def _fetched(url: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=5.0) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, b""


@pytest.mark.parametrize(
    "key", ["", "/", "/etc/passwd", "../a", "a/../b", "a//b", "a/", "./a", "a\x00b", "ä", "a b", ".tmp/x", "x" * 900]
)
async def test_keys_cannot_leave_the_store(blobs: Blobs, key: str) -> None:
    with pytest.raises(InvalidRequestError, match="key"):
        await blobs.put(key, b"x")
    with pytest.raises(InvalidRequestError, match="key"):
        await blobs.get(key)
    with pytest.raises(InvalidRequestError, match="key"):
        await blobs.read(key, 0, 5)
    with pytest.raises(InvalidRequestError, match="key"):
        await blobs.delete([key])
    with pytest.raises(InvalidRequestError, match="key"):
        await blobs.url(key, 60.0)


@settings(max_examples=100)
@given(key=st.text(alphabet="ab./_-\\ \n\u00e9", min_size=1, max_size=8))
@example(key="a\n")
async def test_a_key_is_refused_or_works(blobs: Blobs, key: str) -> None:
    try:
        await blobs.put(key, b"x", durable=False)
    except InvalidRequestError:
        return
    assert await keys(blobs) == {key}
    await blobs.delete([key])
    assert await keys(blobs) == set()
