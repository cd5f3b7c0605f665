"""S3 servers in trouble: away, silent, refusing, full, cut off in the middle of an upload."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from minio import Minio
from urllib3.exceptions import ProtocolError

from scripts.stack import minio
from shared.blobs import Blobs, blocking, open_blobs
from shared.blobs import minio as adapter
from shared.blobs.address import address_of
from shared.domain.errors import BlobMissingError, BlobUnavailableError, ConfigurationError, StorageFullError
from shared.runtime.probes import Probe
from tests.contracts.servers import server_of, url_of
from tests.disks import small_disk

SERVERS = pytest.mark.parametrize("server", ["seaweedfs", "minio"])


@SERVERS
async def test_a_server_that_restarts_is_met_again(server: str) -> None:
    process = server_of(server)
    blobs = await open_blobs(process.url)
    sha256 = await blobs.put("pictures/kept", os.urandom(150_000))
    process.kill()
    for trouble in (
        lambda: blobs.get("pictures/kept"),
        lambda: blobs.put("pictures/new", b"x"),
        lambda: blobs.delete(["pictures/kept"]),
        lambda: all_keys(blobs),
        lambda: open_blobs(process.url),
    ):
        with pytest.raises(BlobUnavailableError) as away:
            await asyncio.wait_for(trouble(), 10.0)
        assert away.value.retry_after_s
        assert "secret" not in str(away.value)
    await asyncio.to_thread(process.start)
    assert len(await eventually(blobs, "pictures/kept", sha256)) == 150_000
    await blobs.delete(["pictures/kept"])
    await blobs.close()


@SERVERS
def test_a_look_at_a_server_makes_no_bucket_and_names_wrong_keys(server: str) -> None:
    at = address_of(url_of(server))

    def look(user: str, secret: str, bucket: str) -> Probe:
        return adapter.probe_bucket(f"minio://{bucket}@{at.endpoint}", user, secret, 5.0)

    for _ in range(2):  # the first look made nothing
        missing = look(at.access_key, at.secret_key, "nobody-made-this")
        assert (missing.found, missing.wrong) == ("bucket 'nobody-made-this' missing, the first start makes it", "")
    refused = look("nobody", "n0t-a-secret", at.bucket)
    assert "check the keys" in refused.wrong
    assert "n0t-a-secret" not in str(refused)
    assert refused.clock_ahead_s is not None
    assert abs(refused.clock_ahead_s) < 60


async def all_keys(blobs: Blobs) -> list[str]:
    return [blob.key async for blob in blobs.list()]


async def eventually(blobs: Blobs, key: str, sha256: str) -> bytes:
    """SeaweedFS answers before its volumes have reported."""
    for _ in range(20):
        try:
            return await blobs.get(key, sha256)
        except BlobUnavailableError:
            await asyncio.sleep(0.5)
    return await blobs.get(key, sha256)


@SERVERS
@pytest.mark.parametrize(("user", "secret"), [("afterimage", "wrong-secret"), ("nobody", "n0t-a-secret")])
async def test_wrong_keys_are_said_and_not_shown(server: str, user: str, secret: str) -> None:
    at = address_of(url_of(server))
    for url, given in (
        (f"minio://{user}:{secret}@{at.endpoint}/{at.bucket}", ("", "")),
        (f"minio://{at.bucket}@{at.endpoint}", (user, secret)),
    ):
        with pytest.raises(ConfigurationError, match=f"blobs_url: bucket '{at.bucket}': .*check the keys") as refused:
            await open_blobs(url, access_key=given[0], secret_key=given[1])
        assert secret not in str(refused.value)


@SERVERS
async def test_the_keys_may_come_from_the_settings_or_the_usual_variables(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = address_of(url_of(server))
    url = f"minio://{at.bucket}@{at.endpoint}"
    given = await open_blobs(url, access_key=at.access_key, secret_key=at.secret_key)
    await given.put("from/settings", b"x")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", at.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", at.secret_key)
    usual = await open_blobs(url)
    assert await usual.get("from/settings") == b"x"
    for blobs in (given, usual):
        await blobs.close()


async def test_no_keys_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY", "AWS_SECRET_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigurationError, match="AFTERIMAGE_BLOBS_ACCESS_KEY"):
        await open_blobs("minio://pictures@127.0.0.1:9")


async def test_a_server_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "READ_S", 0.2)
    taken: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: taken.append(writer), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    start = time.monotonic()
    with pytest.raises(BlobUnavailableError, match="timed out"):
        await open_blobs(f"minio://key:secret@127.0.0.1:{port}/pictures")
    assert time.monotonic() - start < 5.0
    for writer in taken:
        writer.close()
    silent.close()
    await silent.wait_closed()


async def test_a_server_that_is_busy_is_asked_again_at_once() -> None:
    """MinIO says `Retry-After: 60` while it starts: a minute in which the call would block its thread."""
    replies = [b"503 Service Unavailable\r\nRetry-After: 60", b"200 OK"]

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % replies.pop(0))
        writer.close()

    async with await asyncio.start_server(reply, "127.0.0.1", 0) as busy:
        port = busy.sockets[0].getsockname()[1]
        blobs = await asyncio.wait_for(open_blobs(f"minio://key:secret@127.0.0.1:{port}/pictures?secure=false"), 10.0)
        await blobs.close()
    assert not replies


async def test_threads_that_hang_are_counted_until_they_are_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers leave early, their calls do not: who finds every thread busy hears so instead of queueing behind them."""
    monkeypatch.setattr(blocking, "THREADS", 2)
    monkeypatch.setattr(blocking, "FREE_S", 0.2)
    monkeypatch.setattr(adapter, "READ_S", 0.1)
    blobs = adapter.MinioBlobs(address_of("minio://key:secret@127.0.0.1:9/bucket"))
    answered = threading.Event()

    def hangs(*_: object) -> bytes:
        answered.wait(30.0)
        return b""

    def answers(*_: object) -> bytes:
        time.sleep(0.05)
        return b""

    with monkeypatch.context() as silent:
        silent.setattr(blobs, "_get", hangs)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(blobs.get("pictures/a"), 0.05)
        begun = time.monotonic()
        with pytest.raises(BlobUnavailableError, match=r"127\.0\.0\.1:9: all 2 connections hang") as busy:
            await blobs.get("pictures/a")
        assert busy.value.retry_after_s
        assert "127.0.0.1" not in busy.value.outside
        assert time.monotonic() - begun < 5.0
        answered.set()
        assert await asyncio.wait_for(blobs.get("pictures/a"), 5.0) == b""
        silent.setattr(blobs, "_get", answers)
        # many that are answered in turn are no trouble, however long the last one waits
        assert await asyncio.gather(*(blobs.get("pictures/a") for _ in range(30))) == [b""] * 30
    await blobs.close()


async def test_slow_uploads_on_every_thread_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes longer than a caller waits for a thread, and none longer than a server may take to answer."""
    monkeypatch.setattr(blocking, "THREADS", 2)
    monkeypatch.setattr(blocking, "FREE_S", 0.1)
    blobs = adapter.MinioBlobs(address_of("minio://key:secret@127.0.0.1:9/bucket"))

    def slow(*_: object) -> str:
        time.sleep(0.4)
        return "sha256"

    monkeypatch.setattr(blobs, "_put", slow)
    assert await asyncio.gather(*(blobs.put("pictures/a", b"") for _ in range(3))) == ["sha256"] * 3
    await blobs.close()


@SERVERS
async def test_an_upload_cut_off_in_the_middle_leaves_the_old_blob(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "PART_BYTES", 5 * 2**20)
    blobs = await open_blobs(url_of(server))
    await blobs.put("contested", b"old")
    upload = Minio._upload_part
    parts: list[int] = []

    def cut_off(self: Minio, *given: Any) -> str:
        parts.append(given[-1])
        if given[-1] == 2:
            raise ProtocolError("connection broken")
        return upload(self, *given)

    with monkeypatch.context() as broken:
        broken.setattr(Minio, "_upload_part", cut_off)
        with pytest.raises(BlobUnavailableError, match=r"contested.*connection broken"):
            await blobs.put("contested", bytes(11 * 2**20))
        with pytest.raises(BlobUnavailableError):
            await blobs.put("never", bytes(11 * 2**20))
    assert 2 in parts
    assert await blobs.get("contested") == b"old"
    with pytest.raises(BlobMissingError):
        await blobs.get("never")
    assert "never" not in await all_keys(blobs)
    await blobs.put("contested", bytes(11 * 2**20))
    assert await blobs.get("contested") == bytes(11 * 2**20)
    await blobs.delete(["contested"])
    await blobs.close()


@pytest.fixture
def small_minio(tmp_path: Path) -> Iterator[str]:
    """The URL of a MinIO on a disk of 16 MB; needs the right to mount one."""
    if minio.find() is None:
        url_of("minio")  # skips, or fails where it is required
    with small_disk(tmp_path / "disk", "16m") as disk:
        server = minio.start(disk.folder / "minio")
        yield server.url
        server.stop()


async def test_a_full_disk_behind_the_server(small_minio: str) -> None:
    blobs = await open_blobs(small_minio)
    kept = await blobs.put("pictures/kept", os.urandom(4_000_000))
    with pytest.raises(StorageFullError, match="cannot store 20000000 bytes of pictures/large") as full:
        await blobs.put("pictures/large", os.urandom(20_000_000))
    assert full.value.retry_after_s
    assert len(await blobs.get("pictures/kept", kept)) == 4_000_000
    assert await all_keys(blobs) == ["pictures/kept"]
    await blobs.delete(["pictures/kept"])
    await blobs.put("pictures/fits", os.urandom(4_000_000))
    await blobs.close()
