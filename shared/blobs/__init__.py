"""Pictures, latents and checkpoints by key, each verified against the hash it was stored under."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.errors import ConfigurationError


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

    async def close(self) -> None: ...


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def open_blobs(url: str) -> Blobs:
    """`file:/path` (later `minio://bucket@host:port`)."""
    scheme, _, rest = url.partition(":")
    if scheme == "file":
        from shared.blobs.filesystem import FilesystemBlobs

        return await FilesystemBlobs.open(rest)
    raise ConfigurationError(f"blobs_url: no blob store speaks {scheme!r}; use file:/path")
