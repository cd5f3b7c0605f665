"""Put the tests' files, and those of the servers that tests start, into memory when there is room.

An fsync takes milliseconds on a disk and nothing in memory. Each job waits for several, each PostgreSQL database for
dozens. Processes are killed in tests, machines are not, so no test can see the difference.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
PREFIX = "afterimage-tests-"
FILES_BYTES = 6 << 30
"""Room that the files need at most: PostgreSQL alone keeps up to 1 GiB of log for each of several servers."""
PROCESSES_BYTES = 6 << 30
"""Memory that the processes of three workers need beside the files."""


def use_memory() -> None:
    """Make a folder in memory the place of temporary files until this process ends, also for child processes.

    The disk stays in use when TMPDIR is set, when memory is short, and where /dev/shm is missing or runs no programs.
    """
    if "TMPDIR" in os.environ or not has_room(MEMORY):
        return
    sweep(MEMORY)
    folder = MEMORY / f"{PREFIX}{os.getpid()}"
    folder.mkdir()
    folder.chmod(0o755)  # PostgreSQL runs as another user if this process is root
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    atexit.register(_remove, folder, os.getpid())  # runs after the handlers that stop servers, which register later


def has_room(memory: Path, needs: int = FILES_BYTES + PROCESSES_BYTES) -> bool:
    try:
        mounted, lines = os.statvfs(memory), Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return False
    available = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)
    free = mounted.f_bavail * mounted.f_frsize
    return available >= needs and free >= FILES_BYTES and not mounted.f_flag & os.ST_NOEXEC


def sweep(memory: Path) -> None:
    """Remove what killed sessions left behind."""
    for path in memory.glob(f"{PREFIX}*"):
        if not Path(f"/proc/{path.name.removeprefix(PREFIX)}").exists():
            shutil.rmtree(path, ignore_errors=True)


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not in a forked child
        shutil.rmtree(folder, ignore_errors=True)
