"""Blobs on any S3 server through the `minio` client.

The content's sha256 is stored as user metadata, so that `get` can verify the content. A put is atomic, because S3 shows
an object, of one part or of many, only when it is complete. Durability depends on the server.
"""

from __future__ import annotations

import io
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import urllib3
from minio import Minio
from minio.credentials.providers import EnvAWSProvider, Provider, StaticProvider
from minio.deleteobjects import DeleteObject
from minio.error import S3Error

from shared.blobs import BlobInfo, check_content, check_key, check_range, digest
from shared.blobs.address import Address, address_of
from shared.blobs.blocking import THREADS, BlockingCalls
from shared.blobs.s3_errors import RETRY_AFTER_S, away, told, told_at_open, unless_refused_again
from shared.domain.errors import BlobUnavailableError, ConfigurationError, InvalidRequestError
from shared.runtime.probes import Probe, ahead_by

PART_BYTES = 16 * 2**20
"""Blobs above this size in bytes are sent in parts of this size (S3 requires at least 5 MiB)."""
CONNECT_S, READ_S = 2.0, 10.0
"""Timeouts in seconds of opening a connection, and of every wait for bytes on it.

With RETRIES, a server that accepts connections and never answers blocks a thread for half a minute.
"""
TRIES = 3
RETRIES = urllib3.Retry(
    total=TRIES - 1,
    backoff_factor=0.2,
    status_forcelist=(500, 502, 503, 504),
    allowed_methods=None,  # all calls of this class may be repeated
    raise_on_status=False,
    # MinIO answers 503 with `Retry-After: 60` while it starts, which takes about a second
    respect_retry_after_header=False,
)
MAX_LIFETIME_S = 7 * 24 * 3600.0
PAGE = 1000
HASH = "x-amz-meta-sha256"
RANGE_BEYOND_END = 416
"""HTTP status of a range that begins at the end of an object, or beyond it."""


def probe_bucket(url: str, access_key: str, secret_key: str, limit_s: float) -> Probe:
    """Ask an S3 server for its clock and the bucket, on this thread; each answer may take `limit_s` seconds.

    Makes no bucket. Raises BlobUnavailableError for a server that does not answer.
    """
    at = address_of(url, access_key, secret_key)
    pool = urllib3.PoolManager(timeout=urllib3.Timeout(connect=min(CONNECT_S, limit_s), read=limit_s), retries=False)
    root = f"{'https' if at.secure else 'http'}://{at.endpoint}/"
    try:
        with told(f"bucket {at.bucket!r} at {at.endpoint}"):
            pool.request("HEAD", root)  # connects
            begun, asked_at = time.monotonic(), time.time()
            answer = pool.request("HEAD", root)
            took = time.monotonic() - begun
        server = f"S3 at {at.endpoint} ({answer.headers.get('Server', 'no name')})"
        ahead = ahead_by(answer.headers.get("Date", ""), asked_at + took / 2)
        found = wrong = ""
        try:
            client = Minio(at.endpoint, secure=at.secure, region=at.region, credentials=_keys(at), http_client=pool)
            with told_at_open(at.bucket):
                there = client.bucket_exists(at.bucket)
            found = f"bucket {at.bucket!r}" + ("" if there else " missing, the first start makes it")
        except ConfigurationError as error:
            wrong = str(error)
        except ValueError as error:
            wrong = str(_unusable(at, error))
    finally:
        pool.clear()
    return Probe(server, took, found, wrong=wrong, clock_ahead_s=ahead)


def _keys(at: Address) -> Provider:
    return StaticProvider(at.access_key, at.secret_key) if at.access_key else EnvAWSProvider()


def _unusable(at: Address, error: ValueError) -> ConfigurationError:
    hint = "" if at.access_key else "; set AFTERIMAGE_BLOBS_ACCESS_KEY and AFTERIMAGE_BLOBS_SECRET_KEY"
    return ConfigurationError(f"blobs_url: bucket {at.bucket!r} at {at.endpoint}: {error}{hint}")


class MinioBlobs:
    """Blobs in one bucket; any number of processes may share it."""

    process_local = False

    def __init__(self, at: Address) -> None:
        keys = _keys(at)
        self._pool = urllib3.PoolManager(
            maxsize=THREADS, block=True, timeout=urllib3.Timeout(connect=CONNECT_S, read=READ_S), retries=RETRIES
        )
        self._client = Minio(at.endpoint, secure=at.secure, region=at.region, credentials=keys, http_client=self._pool)
        # used only for signing: it never connects
        self._public = Minio(at.public, secure=at.public_secure, region=at.region, credentials=keys)
        self._bucket = at.bucket
        self._calls = BlockingCalls(READ_S * TRIES, lambda said: away("blobs", f"{at.endpoint}: {said}"))

    @classmethod
    async def open(cls, url: str, access_key: str = "", secret_key: str = "") -> MinioBlobs:
        """Open the bucket of `address_of(url)`; create it if missing.

        Without keys, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY apply.
        """
        at = address_of(url, access_key, secret_key)
        try:
            blobs = cls(at)
            await blobs._calls.run(blobs._prepare)
        except ValueError as error:  # the client's own checks: bucket name, host, keys
            raise _unusable(at, error) from error
        return blobs

    def _prepare(self) -> None:
        with told_at_open(self._bucket):
            if not self._client.bucket_exists(self._bucket):
                self._client.make_bucket(self._bucket)

    async def put(self, key: str, data: bytes, *, durable: bool = True) -> str:
        check_key(key)
        return await self._calls.run(lambda: self._put(key, data))

    def _put(self, key: str, data: bytes) -> str:
        sha256 = digest(data)
        with told(f"cannot store {len(data)} bytes of {key}"):
            unless_refused_again(
                lambda: self._client.put_object(
                    self._bucket,
                    key,
                    io.BytesIO(data),
                    len(data),
                    metadata={"sha256": sha256},
                    part_size=PART_BYTES,
                    num_parallel_uploads=1,
                )
            )
        return sha256

    async def get(self, key: str, sha256: str = "") -> bytes:
        check_key(key)
        return await self._calls.run(lambda: self._get(key, sha256))

    def _get(self, key: str, sha256: str) -> bytes:
        with told(f"blob {key}"):
            response = self._client.get_object(self._bucket, key)
            try:
                data = response.read()
            finally:
                response.release_conn()
        found = digest(data)
        check_content(key, found, stored=response.headers.get(HASH, found), wanted=sha256)
        return data

    async def read(self, key: str, offset: int, length: int) -> bytes:
        check_range(offset, length)
        check_key(key)
        return await self._calls.run(lambda: self._read(key, offset, length))

    def _read(self, key: str, offset: int, length: int) -> bytes:
        with told(f"blob {key}"):
            try:
                response = self._client.get_object(self._bucket, key, offset=offset, length=length)
            except S3Error as error:
                if error.response.status != RANGE_BEYOND_END:
                    raise
                return b""
            try:
                return response.read()
            finally:
                response.release_conn()

    async def delete(self, keys: Sequence[str]) -> None:
        wanted = [DeleteObject(check_key(key)) for key in keys]
        if wanted:
            await self._calls.run(lambda: self._delete(wanted))

    def _delete(self, wanted: Sequence[DeleteObject]) -> None:
        with told(f"cannot delete {len(wanted)} blobs"):
            left = [f"{one.name}: {one.code}" for one in self._client.remove_objects(self._bucket, wanted)]
        if left:
            raise BlobUnavailableError(f"{len(left)} blobs not deleted, first {left[0]}", retry_after_s=RETRY_AFTER_S)

    async def list(self, prefix: str = "") -> AsyncIterator[BlobInfo]:
        if folder := prefix.rpartition("/")[0]:
            check_key(folder)
        found = self._client.list_objects(self._bucket, prefix=prefix, recursive=True)

        def page() -> list[BlobInfo]:
            with told(f"cannot list {prefix!r}"):
                return [
                    BlobInfo(str(one.object_name), one.size or 0, one.last_modified.timestamp())
                    for one in itertools.islice((one for one in found if not one.is_dir and one.last_modified), PAGE)
                ]

        while blobs := await self._calls.run(page):
            for blob in blobs:
                yield blob

    async def url(self, key: str, lifetime_s: float) -> str | None:
        check_key(key)
        if not 1.0 <= lifetime_s <= MAX_LIFETIME_S:
            raise InvalidRequestError("lifetime_s", "must be 1 s to 7 days (604800 s)", lifetime_s)
        expires = timedelta(seconds=lifetime_s)
        return await self._calls.run(lambda: self._public.presigned_get_object(self._bucket, key, expires))

    async def close(self) -> None:
        await self._calls.close()
        self._pool.clear()
