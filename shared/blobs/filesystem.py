"""Blobs as plain files: written to a temporary file, renamed into place, synced, and verified when read."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import itertools
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from shared.blobs import BlobInfo, check_content, check_key, check_range, digest
from shared.domain.errors import (
    BlobCorruptError,
    BlobMissingError,
    BlobUnavailableError,
    ConfigurationError,
    StorageFullError,
)
from shared.runtime.datadir import private_folder, private_opener

P = ParamSpec("P")
R = TypeVar("R")

MAGIC = b"AFTIMG\x01\x00"
TRAILER = len(MAGIC) + hashlib.sha256().digest_size
"""Size of the trailer: a file is its content, MAGIC and the content's sha256.

The trailer follows the content, where image viewers ignore it.
"""
TEMPORARY = ".tmp"
ABANDONED_AFTER_S = 3600.0
SMALL = 65_536
"""Largest blob in bytes that is read on the event loop, where the read costs less than a hop to a thread."""
THREADS = 4
PAGE = 500
RETRY_AFTER_S = 30.0

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Convert the operating system's errors: none is the caller's fault, and most are temporary."""
    try:
        yield
    except OSError as error:
        said = f"{what}: {error.strerror or error}"
        if error.errno in _FULL:
            raise StorageFullError(said, retry_after_s=RETRY_AFTER_S) from error
        raise BlobUnavailableError(said, retry_after_s=RETRY_AFTER_S) from error


class FilesystemBlobs:
    """Blobs under one directory; several processes may share it."""

    process_local = False

    def __init__(self, root: str) -> None:
        self._root = Path(root).absolute()
        self._prefix = f"{self._root}/"
        self._numbers = itertools.count()
        self._threads = ThreadPoolExecutor(THREADS, "blobs")

    @classmethod
    async def open(cls, path: str) -> FilesystemBlobs:
        """Open the path of `file:path` or `file:///path`; create the directory if missing."""
        blobs = cls(path.removeprefix("//"))
        try:
            await blobs._off_loop(blobs._prepare)
        except OSError as error:
            raise ConfigurationError(f"blobs_url: {path} cannot be used ({error.strerror}); choose another") from error
        return blobs

    def _prepare(self) -> None:
        private_folder(self._root)  # this also makes files of earlier versions private
        private_folder(self._root / TEMPORARY)
        old = time.time() - ABANDONED_AFTER_S
        for left in os.scandir(self._root / TEMPORARY):
            with suppress(FileNotFoundError):
                if left.stat().st_mtime < old:
                    os.unlink(left.path)

    async def _off_loop(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: work(*args, **kwargs))

    async def put(self, key: str, data: bytes, *, durable: bool = True) -> str:
        return await self._off_loop(self._put, check_key(key), data, durable)

    def _put(self, key: str, data: bytes, durable: bool) -> str:
        hashed = hashlib.sha256(data)
        # strings, not Paths: creating Paths costs as much as the write
        temporary = f"{self._prefix}{TEMPORARY}/{os.getpid()}-{next(self._numbers)}"
        try:
            with (
                _told(f"{self._root}: cannot store {len(data)} bytes of {key}"),
                open(temporary, "wb", buffering=0, opener=private_opener) as file,
            ):
                for part in (data, MAGIC + hashed.digest()):
                    rest = memoryview(part)
                    while rest:  # a nearly full disk may accept only a part
                        rest = rest[file.write(rest) :]
                self._place(temporary, self._prefix + key)
                if durable:
                    # One fsync, after the rename: ext4, xfs and btrfs then commit the name and new folders with the
                    # content. A power cut before this can leave a torn file, which its trailer reveals.
                    os.fsync(file.fileno())
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        return hashed.hexdigest()

    def _place(self, temporary: str, target: str) -> None:
        for _ in range(100):  # a concurrent delete() may remove an empty folder while this code creates it
            try:
                return os.rename(temporary, target)
            except FileNotFoundError:
                # the parent was removed before or after its creation; if a file has its name, the rename fails
                with suppress(FileNotFoundError, NotADirectoryError):
                    private_folder(Path(target).parent, tighten=False)
        return os.rename(temporary, target)

    async def get(self, key: str, sha256: str = "") -> bytes:
        size = self._size(check_key(key))
        # 8 KB: 0.03 ms here, 0.13 ms through a thread; 150 KB: 0.25 ms either way
        return self._get(key, sha256) if size <= SMALL else await self._off_loop(self._get, key, sha256)

    def _size(self, key: str) -> int:
        with _told(f"blob {key}"):
            try:
                return os.stat(self._prefix + key).st_size
            except (FileNotFoundError, NotADirectoryError) as error:
                raise BlobMissingError(f"blob {key}: not there") from error

    def _get(self, key: str, sha256: str) -> bytes:
        with _told(f"blob {key}"):
            try:
                stored = (self._root / key).read_bytes()
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
                raise BlobMissingError(f"blob {key}: not there") from error
        data, trailer = stored[:-TRAILER], stored[-TRAILER:]
        stored_under = trailer[len(MAGIC) :].hex() if trailer.startswith(MAGIC) else ""
        check_content(key, digest(data), stored=stored_under, wanted=sha256)
        return data

    async def read(self, key: str, offset: int, length: int) -> bytes:
        check_range(offset, length)
        return await self._off_loop(self._read, check_key(key), offset, length)

    def _read(self, key: str, offset: int, length: int) -> bytes:
        with _told(f"blob {key}"):
            try:
                with open(self._prefix + key, "rb") as file:
                    end = max(file.seek(0, os.SEEK_END) - TRAILER, 0)
                    file.seek(end)
                    whole = file.read(len(MAGIC)) == MAGIC
                    file.seek(min(offset, end))
                    data = file.read(min(length, max(end - offset, 0)))
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
                raise BlobMissingError(f"blob {key}: not there") from error
        if not whole:
            raise BlobCorruptError(f"blob {key}: its file is not whole")
        return data

    async def delete(self, keys: Sequence[str]) -> None:
        await self._off_loop(self._delete, [check_key(key) for key in keys])

    def _delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            with _told(f"blob {key}"), suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                os.unlink(self._root / key)
        for folder in sorted({parent for key in keys for parent in Path(key).parents[:-1]}, reverse=True):
            with suppress(OSError):  # not empty, or already removed
                os.rmdir(self._root / folder)

    async def list(self, prefix: str = "") -> AsyncIterator[BlobInfo]:
        found = self._walk(prefix)
        while page := await self._off_loop(lambda: [*itertools.islice(found, PAGE)]):
            for blob in page:
                yield blob

    def _walk(self, prefix: str) -> Iterator[BlobInfo]:
        """Yield the blobs, in the order of the folders: a sorted list of a million names takes 100 MiB."""
        folder = prefix.rpartition("/")[0]
        if folder:
            check_key(folder)
        folders = [folder]
        while folders:
            under = folders.pop()
            with _told(f"{self._root / under}: cannot be listed"):  # a folder that is left out would look empty
                try:
                    names = os.scandir(self._root / under)
                except (FileNotFoundError, NotADirectoryError):
                    continue
            with names:
                for one in names:
                    key = f"{under}/{one.name}" if under else one.name
                    if one.is_dir():
                        # only folders that can still contain a match
                        if one.name != TEMPORARY and not one.is_symlink() and _may_hold(key, prefix):
                            folders.append(key)
                    elif key.startswith(prefix):
                        with suppress(FileNotFoundError):  # deleted in between
                            seen = one.stat()
                            yield BlobInfo(key, max(seen.st_size - TRAILER, 0), seen.st_mtime)

    async def url(self, key: str, lifetime_s: float) -> str | None:
        check_key(key)
        return None  # a file has no URL that others could use

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)


def _may_hold(folder: str, prefix: str) -> bool:
    inside = f"{folder}/"
    return inside.startswith(prefix) or prefix.startswith(inside)
