"""Blobs on any S3 server through the `minio` client, whose blocking calls run on threads of their own.

The content's sha256 travels as user metadata, so that `get` verifies what it read against what was stored. A put is
whole or not at all because S3 shows an object, of one part or of many, only when it is complete. What is durable is
the server's business.
"""

from __future__ import annotations

import asyncio
import io
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import urllib3
from minio import Minio
from minio.credentials.providers import EnvAWSProvider, Provider, StaticProvider
from minio.deleteobjects import DeleteObject
from minio.error import MinioException, S3Error
from urllib3.exceptions import HTTPError

from shared.blobs import BlobInfo, check_key, digest
from shared.blobs.address import Address, address_of
from shared.errors import (
    BlobCorruptError,
    BlobMissingError,
    BlobUnavailableError,
    ConfigurationError,
    InvalidRequestError,
    StorageFullError,
)

R = TypeVar("R")

PART_BYTES = 16 * 2**20
"""Blobs above this go in parts of this size (S3 wants at least 5 MiB)."""
THREADS = 16
FREE_S = 10.0
"""How long a call waits for one of them before it asks whether the server answers anything at all; a caller that gave
up earlier leaves its thread to the limits below."""
CONNECT_S, READ_S = 2.0, 10.0
"""Limits of opening a connection, and of every wait for bytes on it: with RETRIES a server that takes connections and
never answers holds a thread for half a minute."""
TRIES = 3
RETRIES = urllib3.Retry(
    total=TRIES - 1,
    backoff_factor=0.2,
    status_forcelist=(500, 502, 503, 504),
    allowed_methods=None,  # all of ours may be repeated
    raise_on_status=False,
)
MAX_LIFETIME_S = 7 * 24 * 3600.0
PAGE = 1000
RETRY_AFTER_S = 5.0
HASH = "x-amz-meta-sha256"

_FULL = ("XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "QuotaExceeded", "InsufficientStorage")
_NO_SPACE = "no space left on device"
"""So says MinIO on a small disk; SeaweedFS says only that something is wrong, which is BlobUnavailableError."""
_REFUSED = ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch")


@contextmanager
def _told(what: str) -> Iterator[None]:
    """The client's errors in our words; none of them carries a key of ours."""
    try:
        yield
    except S3Error as error:
        said = f"{what}: {error.code} ({error.message})"
        if error.code == "NoSuchKey":
            raise BlobMissingError(f"{what}: not there") from error
        if error.code in _FULL or error.response.status == 507 or _NO_SPACE in (error.message or ""):
            raise StorageFullError(said, retry_after_s=RETRY_AFTER_S) from error
        raise BlobUnavailableError(said, retry_after_s=RETRY_AFTER_S) from error
    except (MinioException, HTTPError) as error:
        away = f"{what}: the blob store does not answer; ask again in a moment"
        raise BlobUnavailableError(f"{what}: {error}", retry_after_s=RETRY_AFTER_S, outside=away) from error


class MinioBlobs:
    """Blobs in one bucket; any number of processes may share it."""

    process_local = False

    def __init__(self, at: Address) -> None:
        keys: Provider = StaticProvider(at.access_key, at.secret_key) if at.access_key else EnvAWSProvider()
        self._pool = urllib3.PoolManager(
            maxsize=THREADS, block=True, timeout=urllib3.Timeout(connect=CONNECT_S, read=READ_S), retries=RETRIES
        )
        self._client = Minio(at.endpoint, secure=at.secure, region=at.region, credentials=keys, http_client=self._pool)
        # only signs: it never connects
        self._public = Minio(at.public, secure=at.public_secure, region=at.region, credentials=keys)
        self._bucket, self._endpoint = at.bucket, at.endpoint
        self._threads = ThreadPoolExecutor(THREADS, "blobs")
        self._free = asyncio.Semaphore(THREADS)
        self._answered_at = float("-inf")
        """When the server last was heard of, by the event loop's clock."""
        self._running: dict[Future[Any], float] = {}
        """Since when, by the same clock; oldest first."""

    @classmethod
    async def open(cls, url: str, access_key: str = "", secret_key: str = "") -> MinioBlobs:
        """See `address_of`; makes the bucket when it is missing. Without keys AWS_ACCESS_KEY_ID and
        AWS_SECRET_ACCESS_KEY count."""
        at = address_of(url, access_key, secret_key)
        try:
            blobs = cls(at)
            await blobs._off_loop(blobs._prepare)
        except ValueError as error:  # the client's own checks: bucket name, host, keys
            hint = "" if at.access_key else "; set AFTERIMAGE_BLOBS_ACCESS_KEY and AFTERIMAGE_BLOBS_SECRET_KEY"
            raise ConfigurationError(f"blobs_url: bucket {at.bucket!r} at {at.endpoint}: {error}{hint}") from error
        return blobs

    def _prepare(self) -> None:
        with _told(f"bucket {self._bucket!r}"):
            try:
                if not self._client.bucket_exists(self._bucket):
                    self._client.make_bucket(self._bucket)
            except S3Error as error:
                if error.code in _REFUSED:
                    said = f"blobs_url: bucket {self._bucket!r}: the server says {error.code}; check the keys"
                    raise ConfigurationError(said) from error
                if error.code != "BucketAlreadyOwnedByYou":  # another process made it meanwhile
                    raise

    async def _off_loop(self, work: Callable[[], R]) -> R:
        """On a thread; BlobUnavailableError when all of them hang on a server that does not answer, so that calls do
        not pile up before them. A thread is free again when its call has ended, not when its caller has left."""
        await self._free_thread()
        loop = asyncio.get_running_loop()
        running = self._threads.submit(work)
        self._running[running] = loop.time()

        def ended(_: object) -> None:
            with suppress(RuntimeError):  # the loop has ended before its threads
                loop.call_soon_threadsafe(self._ended, running)

        running.add_done_callback(ended)
        return await asyncio.wrap_future(running)

    async def _free_thread(self) -> None:
        """However many wait, as long as the server answers some; and if it answers none, for as long as a single call
        may go without an answer: many slow uploads at once end late, and hang no more than one does."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout(FREE_S):
                    await self._free.acquire()
                    return
            except TimeoutError as error:
                now = loop.time()
                oldest_s = now - next(iter(self._running.values()), now)
                if now - self._answered_at >= FREE_S and oldest_s >= READ_S * TRIES:
                    said = f"{self._endpoint}: all {THREADS} connections hang, the first for {oldest_s:.1f} s"
                    raise BlobUnavailableError(said, retry_after_s=RETRY_AFTER_S) from error

    def _ended(self, call: Future[Any]) -> None:
        self._free.release()
        del self._running[call]
        if not call.cancelled() and not isinstance(call.exception(), BlobUnavailableError):
            self._answered_at = asyncio.get_running_loop().time()

    async def put(self, key: str, data: bytes, *, durable: bool = True) -> str:
        check_key(key)
        return await self._off_loop(lambda: self._put(key, data))

    def _put(self, key: str, data: bytes) -> str:
        sha256 = digest(data)
        with _told(f"cannot store {len(data)} bytes of {key}"):
            self._client.put_object(
                self._bucket,
                key,
                io.BytesIO(data),
                len(data),
                metadata={"sha256": sha256},
                part_size=PART_BYTES,
                num_parallel_uploads=1,
            )
        return sha256

    async def get(self, key: str, sha256: str = "") -> bytes:
        check_key(key)
        return await self._off_loop(lambda: self._get(key, sha256))

    def _get(self, key: str, sha256: str) -> bytes:
        with _told(f"blob {key}"):
            response = self._client.get_object(self._bucket, key)
            try:
                data = response.read()
            finally:
                response.release_conn()
        found = digest(data)
        if response.headers.get(HASH, found) != found:
            raise BlobCorruptError(f"blob {key}: its content does not have the hash it was stored under")
        if sha256 and found != sha256:
            raise BlobCorruptError(f"blob {key}: has hash {found[:12]}…, expected {sha256[:12]}…")
        return data

    async def delete(self, keys: Sequence[str]) -> None:
        wanted = [DeleteObject(check_key(key)) for key in keys]
        if wanted:
            await self._off_loop(lambda: self._delete(wanted))

    def _delete(self, wanted: Sequence[DeleteObject]) -> None:
        with _told(f"cannot delete {len(wanted)} blobs"):
            left = [f"{one.name}: {one.code}" for one in self._client.remove_objects(self._bucket, wanted)]
        if left:
            raise BlobUnavailableError(f"{len(left)} blobs not deleted, first {left[0]}", retry_after_s=RETRY_AFTER_S)

    async def list(self, prefix: str = "") -> AsyncIterator[BlobInfo]:
        if folder := prefix.rpartition("/")[0]:
            check_key(folder)
        found = self._client.list_objects(self._bucket, prefix=prefix, recursive=True)

        def page() -> list[BlobInfo]:
            with _told(f"cannot list {prefix!r}"):
                return [
                    BlobInfo(str(one.object_name), one.size or 0, one.last_modified.timestamp())
                    for one in itertools.islice((one for one in found if not one.is_dir and one.last_modified), PAGE)
                ]

        while blobs := await self._off_loop(page):
            for blob in blobs:
                yield blob

    async def url(self, key: str, lifetime_s: float) -> str | None:
        check_key(key)
        if not 1.0 <= lifetime_s <= MAX_LIFETIME_S:
            raise InvalidRequestError("lifetime_s", "a signed URL lives 1 s to 7 days", lifetime_s)
        expires = timedelta(seconds=lifetime_s)
        return await self._off_loop(lambda: self._public.presigned_get_object(self._bucket, key, expires))

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)
        self._pool.clear()
