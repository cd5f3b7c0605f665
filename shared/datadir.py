"""The lock that keeps a second process out of a data directory."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from shared.errors import ConfigurationError, DataDirectoryLockedError

LOCK_FILE = "lock"


class DataDirLock:
    """Held until `release()`, or until the process ends however it ends: the kernel drops it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def lock_data_dir(path: Path | str) -> DataDirLock:
    """Makes the directory when it is missing and takes its lock; DataDirectoryLockedError names who has it."""
    directory = Path(path).absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ConfigurationError(f"data_dir: {directory} cannot be used ({error.strerror}); choose another") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise DataDirectoryLockedError(
            f"data_dir: {directory} is in use by process {holder} (which may still be starting); use or stop that one, "
            "or give this one another data_dir"
        ) from error
    except OSError:
        # a full disk cannot take the pid, but the lock itself holds
        pass
    return DataDirLock(directory, descriptor)
