"""Images, latents and checkpoints by key, each verified against its stored hash."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.domain.errors import BlobCorruptError, ConfigurationError, InvalidRequestError

_PART = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}"
_KEY = re.compile(rf"{_PART}(/{_PART})*")


@dataclass(frozen=True, slots=True)
class BlobInfo:
    key: str
    bytes: int
    modified_at: float
    """Unix seconds."""


class Blobs(Protocol):
    """A blob store. BlobUnavailableError means trouble of the store: permissions, a failing disk, no server."""

    process_local: bool

    async def put(self, key: str, data: bytes, *, durable: bool = True) -> str:
        """Store or replace a blob atomically; return its sha256 hex digest. Raise StorageFullError if there is no room.

        `durable=False` is for blobs that can be made again (cached states, checkpoints). A killed process loses
        nothing. A power cut may lose or tear the blob, which `get` then reports. Keys are parts of letters, digits and
        `._-` joined by `/`; raise InvalidRequestError for others.
        """
        ...

    async def get(self, key: str, sha256: str = "") -> bytes:
        """Return the content.

        Raise BlobMissingError, or BlobCorruptError if the content does not have the given (or stored) hash.
        """
        ...

    async def read(self, key: str, offset: int, length: int) -> bytes:
        """Return at most `length` bytes from `offset` on: fewer at the end of the content, none beyond the end.

        Only these bytes are read, so the content's hash is not checked: the caller checks the hash of all parts
        together. Raise BlobMissingError, or InvalidRequestError unless offset ≥ 0 and length ≥ 1.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete blobs; ignore missing keys."""
        ...

    def list(self, prefix: str = "") -> AsyncIterator[BlobInfo]:
        """Yield every blob whose key starts with `prefix`."""
        ...

    async def url(self, key: str, lifetime_s: float) -> str | None:
        """Return a signed URL for a GET of this blob, valid for `lifetime_s` (1 s to 7 days); None if unsupported.

        The blob's existence is not checked.
        """
        ...

    async def close(self) -> None: ...


async def pages(blobs: AsyncIterator[BlobInfo], size: int) -> AsyncIterator[list[BlobInfo]]:
    """Yield the blobs in lists of at most `size`."""
    page: list[BlobInfo] = []
    async for blob in blobs:
        page.append(blob)
        if len(page) == size:
            yield page
            page = []
    if page:
        yield page


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def check_content(key: str, found: str, *, stored: str, wanted: str) -> None:
    """Raise BlobCorruptError unless the `found` hash equals the stored hash and, if given, the wanted hash."""
    if found != stored:
        raise BlobCorruptError(f"blob {key}: its content does not have the hash it was stored under")
    if wanted and found != wanted:
        raise BlobCorruptError(f"blob {key}: has hash {found[:12]}…, expected {wanted[:12]}…")


def check_key(key: str) -> str:
    """Return the key; raise InvalidRequestError unless it is parts of letters, digits and `._-` joined by `/`."""
    if len(key) > 800 or not _KEY.fullmatch(key):
        rule = (
            "must be parts of 1-200 letters, digits, `.`, `_`, `-`, none starting with a dot, joined by single slashes"
        )
        raise InvalidRequestError("key", rule, key)
    return key


def check_range(offset: int, length: int) -> None:
    """Raise InvalidRequestError unless offset ≥ 0 and length ≥ 1."""
    if offset < 0:
        raise InvalidRequestError("offset", "must be at least 0", offset)
    if length < 1:
        raise InvalidRequestError("length", "must be at least 1", length)


async def open_blobs(url: str, *, access_key: str = "", secret_key: str = "") -> Blobs:
    """Open `file:/path`, or `minio://access:secret@host:port/bucket` (any S3 server).

    The key arguments are for URLs without keys.
    """
    scheme, _, rest = url.partition(":")
    match scheme:
        case "file":
            from shared.blobs.filesystem import FilesystemBlobs

            return await FilesystemBlobs.open(rest)
        case "minio":
            try:
                from shared.blobs.minio import MinioBlobs
            except ImportError as error:
                raise ConfigurationError(f"blobs_url: {scheme}: {error}; install afterimage[cluster]") from error
            return await MinioBlobs.open(url, access_key, secret_key)
    raise ConfigurationError(
        f"blobs_url: scheme must be file or minio (got {scheme!r}); "
        "use file:/path or minio://access:secret@host:port/bucket"
    )
