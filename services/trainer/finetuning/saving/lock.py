"""Lock of a run's folder: two runs in one folder would mix their checkpoints and metrics."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.domain.errors import ConfigurationError

FILE = "lock"
LEASE_S = 120.0
"""Seconds after which a network file system has released the lock of a machine that failed (NFSv4: 90 s)."""
POLL_S = 0.2


@contextmanager
def locked(folder: Path, say: Callable[[str], None], *, lease_s: float = LEASE_S) -> Iterator[None]:
    """Hold the lock of a folder, which is made if needed, while the block runs; it ends with the process too.

    A file system without locks gets a line to `say`. A process of another machine may have ended with it, so its lock
    is awaited for `lease_s`. Raises ConfigurationError where another process holds the lock, with its number and
    machine, and where the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ConfigurationError(f"out: {folder} cannot be written: {error.strerror}") from error
    try:
        _take(descriptor, folder, say, lease_s)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, folder: Path, say: Callable[[str], None], lease_s: float) -> None:
    host, limit = socket.gethostname(), time.monotonic() + lease_s
    awaited = ""
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "unknown"
            if holder.endswith(f" on {host}") or time.monotonic() >= limit:
                raise ConfigurationError(
                    f"out: another run trains in {folder.parent} (process {holder}); wait for it or stop it, or name "
                    "another folder"
                ) from None
            if holder != awaited:
                say(f"waiting up to {lease_s:g} s for the lock of {folder}, which process {holder} holds")
            awaited = holder
            time.sleep(POLL_S)
        except OSError as error:  # some network file systems have no locks
            say(f"{folder} cannot be locked ({error.strerror}): start no second run in it")
            return
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} on {host}\n".encode(), 0)
    except OSError:
        pass  # on a full disk the lock holds without the name of its process
