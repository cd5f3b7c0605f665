"""The lock of a data directory against a second process, and file modes against other users."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

from shared.domain.errors import ConfigurationError, DataDirectoryLockedError
from shared.runtime.settings import Settings

LOCK_FILE = "lock"
OWNER_FOLDER, OWNER_FILE = 0o700, 0o600
OTHERS = 0o077


def private_folder(path: Path | str, mode: int = OWNER_FOLDER, *, tighten: bool = True) -> Path:
    """Make the folder and its missing parents with this mode, under any umask; return its absolute path.

    tighten: an existing folder of this user that is open to other users gets the mode too. The root, a home directory
    and a sticky folder such as /tmp keep their mode, because they have other uses.
    """
    folder = Path(path).absolute()
    for one in reversed([one for one in (folder, *folder.parents) if not one.exists()]):
        with suppress(FileExistsError):  # another process has just made it
            one.mkdir(mode=mode)
            if mode & ~one.stat().st_mode:  # the umask removed bits
                _chmod(one, mode)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    shared = (Path("/"), Path(os.path.expanduser("~")))
    if tighten and folder not in shared and not folder.stat().st_mode & stat.S_ISVTX:
        _tighten(folder, mode)
    return folder


def nearest(path: Path) -> Path:
    """Return the file or folder, or its nearest parent that exists."""
    return next(one for one in (path, *path.parents) if one.exists())


def private_file(path: Path | str) -> None:
    """Give an existing file of this user the mode 0600.

    The file is not opened, because closing it would release SQLite's locks on it in this process.
    """
    with suppress(FileNotFoundError):
        _tighten(Path(path), OWNER_FILE)


def private_opener(path: str, flags: int) -> int:
    """Open a file that only its owner may read and write; the `opener` of `open`."""
    return os.open(path, flags, OWNER_FILE)


def write_private(path: Path, text: str) -> None:
    """Write a text file that only its owner may read."""
    with open(path, "w", opener=private_opener) as file:
        private_file(path)
        file.write(text)


def _tighten(path: Path, mode: int) -> None:
    seen = path.stat()
    if seen.st_uid == os.geteuid() and seen.st_mode & OTHERS & ~mode:
        _chmod(path, mode)


def _chmod(path: Path, mode: int) -> None:
    with suppress(OSError):  # a file system without modes: EPERM, ENOSYS, EOPNOTSUPP, or a read-only one
        path.chmod(mode)


def works_in_data_dir(settings: Settings) -> bool:
    """Return whether only one process may work in the data directory."""
    return settings.bus_url.startswith("inprocess:") or settings.catalog_url.startswith("sqlite")


class DataDirLock:
    """A lock that is held until `release()`, or until the process ends in any way: the kernel then releases it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def lock_data_dir(path: Path | str, setting: str = "data_dir") -> DataDirLock:
    """Make the directory if needed and take its lock; DataDirectoryLockedError names the process that holds it.

    setting: the name of the setting or argument for messages.
    """
    directory = Path(path).absolute()
    try:
        private_folder(directory)
        descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, OWNER_FILE)
        private_file(directory / LOCK_FILE)
    except OSError as error:
        raise ConfigurationError(f"{setting}: {directory} cannot be used ({error.strerror}); choose another") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError as error:
        holder = _holder(descriptor)
        os.close(descriptor)
        raise DataDirectoryLockedError(
            f"{setting}: {directory} is in use by process {holder} (which may still be starting); use, await or stop "
            f"that process, or choose another {setting}"
        ) from error
    except OSError:
        # on a full disk the pid cannot be written, but the lock holds
        pass
    return DataDirLock(directory, descriptor)


def holder_of(path: Path | str) -> str:
    """Return the id of the process that holds the directory's lock, `unknown` if it wrote none; empty: nobody holds it.

    Nothing is made or written. Raises OSError if the lock cannot be opened.
    """
    try:
        descriptor = os.open(Path(path) / LOCK_FILE, os.O_RDONLY)
    except FileNotFoundError:
        return ""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(descriptor)
    finally:
        os.close(descriptor)
    return ""


def _holder(descriptor: int) -> str:
    return os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
