"""Pictures, latents and checkpoints by key, each verified against the hash it was stored under."""

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
    """Trouble of the store itself (permissions, a failing disk, a server that is away) is a BlobUnavailableError."""

    process_local: bool

    async def put(self, key: str, data: bytes, *, durable: bool = True) -> str:
        """Stores or replaces, whole or not at all; the sha256 hex digest. StorageFullError when there is no room.

        `durable=False` is for what can be made again (cached states, checkpoints): a killed process loses nothing, a
        power cut may lose or tear the blob, and `get` then says so. Keys are parts of letters, digits and `._-`
        joined by `/`; InvalidRequestError for others.
        """
        ...

    async def get(self, key: str, sha256: str = "") -> bytes:
        """BlobMissingError, or BlobCorruptError when the content does not have the given (or stored) hash."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Missing keys are fine."""
        ...

    def list(self, prefix: str = "") -> AsyncIterator[BlobInfo]:
        """Every blob whose key starts with `prefix`."""
        ...

    async def url(self, key: str, lifetime_s: float) -> str | None:
        """A signed address from which anyone may GET this blob for so long (at least 1 s, at most 7 days), whether it
        is there or not; None where the store has no such thing."""
        ...

    async def close(self) -> None: ...


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def check_content(key: str, found: str, *, stored: str, wanted: str) -> None:
    """BlobCorruptError unless the hash that was `found` is the one it was stored under and, if any, the one wanted."""
    if found != stored:
        raise BlobCorruptError(f"blob {key}: its content does not have the hash it was stored under")
    if wanted and found != wanted:
        raise BlobCorruptError(f"blob {key}: has hash {found[:12]}…, expected {wanted[:12]}…")


def check_key(key: str) -> str:
    """The key itself; InvalidRequestError unless it is parts of letters, digits and `._-` joined by `/`."""
    if len(key) > 800 or not _KEY.fullmatch(key):
        rule = "parts of 1-200 letters, digits, `.`, `_`, `-`, none starting with a dot, joined by single slashes"
        raise InvalidRequestError("key", rule, key)
    return key


async def open_blobs(url: str, *, access_key: str = "", secret_key: str = "") -> Blobs:
    """`file:/path`, or `minio://access:secret@host:port/bucket` (any S3 server; the keys are for a URL without)."""
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
        f"blobs_url: no blob store speaks {scheme!r}; use file:/path or minio://access:secret@host:port/bucket"
    )
