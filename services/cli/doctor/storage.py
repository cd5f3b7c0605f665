"""Checks of the data directory: its files, its lock, and the free space of its disk."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from services.cli.doctor.findings import Finding, ok, warning, wrong
from services.cli.embedded import found_running
from shared.models.memory import said
from shared.runtime.datadir import OTHERS, holder_of, nearest, works_in_data_dir
from shared.runtime.settings import Settings

DIRECTORY, LOCK, DISK = "data directory", "lock", "disk"


def check_storage(settings: Settings) -> Iterator[Finding]:
    folder = blobs = settings.data_dir.absolute()
    if settings.blobs_url.startswith("file:"):
        blobs = Path(settings.blobs_url.removeprefix("file:").removeprefix("//")).absolute()
    if not blobs.is_relative_to(folder):
        yield _directory(blobs, "blobs", "AFTERIMAGE_BLOBS_URL")
    if not works_in_data_dir(settings):
        yield ok(DIRECTORY, "services over servers keep nothing there")
        return
    yield _directory(folder, DIRECTORY, "AFTERIMAGE_DATA_DIR")
    if folder.is_dir():
        yield _lock(folder)
    yield _disk(folder, settings)


def _directory(folder: Path, check: str, setting: str) -> Finding:
    there = nearest(folder)
    if not there.is_dir():
        return wrong(check, f"{there} is not a folder", f"choose another {setting}")
    facts = there.stat()
    owner, mode = _user(facts.st_uid), stat.S_IMODE(facts.st_mode)
    # flags of the file system first: root may write wherever modes forbid it
    read_only = bool(os.statvfs(there).f_flag & os.ST_RDONLY)
    if read_only or not os.access(there, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        why = "its file system is read-only" if read_only else f"it is {owner}'s, with mode {mode:04o}"
        do = f"let user {_user(os.geteuid())} write there, or choose another {setting}"
        return wrong(check, f"{there} cannot be written: {why}", do)
    if there != folder:
        return ok(check, f"{folder} does not exist yet, the first start makes it")
    if mode & OTHERS:
        return warning(check, f"{folder} has mode {mode:04o}, so other users may read it", f"chmod 700 {folder}")
    return ok(check, f"{folder}, of {owner}, mode {mode:04o}, writable")


def _lock(folder: Path) -> Finding:
    if not (holder := holder_of(folder)):
        return ok(LOCK, "no process works in the data directory")
    if (running := found_running(folder)) is None:
        do = "if it does not serve soon, stop it, or choose another AFTERIMAGE_DATA_DIR"
        return warning(LOCK, f"process {holder} holds the data directory, and serves nothing yet", do)
    return ok(LOCK, f"process {holder} works in the data directory and serves {running['address']}")


def _disk(folder: Path, settings: Settings) -> Finding:
    free = shutil.disk_usage(nearest(folder)).free
    if free < settings.min_free_bytes:
        do = "free space, or lower min_free_bytes: the gateway refuses new jobs"
        return wrong(DISK, f"{_bytes(free)} free, below min_free_bytes of {_bytes(settings.min_free_bytes)}", do)
    limit = settings.cache_max_bytes + settings.picture_max_bytes
    fact = f"{_bytes(free)} free"
    if free >= limit:
        return ok(DISK, f"{fact}, cache limits {_bytes(limit)}")
    if free + (kept := _bytes_in(folder / "blobs")) >= limit + settings.min_free_bytes:
        return ok(DISK, f"{fact} beside {_bytes(kept)} stored, cache limits {_bytes(limit)}")
    do = "free space, or lower cache_max_bytes and picture_max_bytes"
    return warning(DISK, f"{fact} beside {_bytes(kept)} stored: less than the cache limits of {_bytes(limit)}", do)


def _bytes(count: int) -> str:
    return said(count) if count else "0 MiB"


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _bytes_in(folder: Path) -> int:
    found = 0
    for root, _, files in os.walk(folder):
        for file in files:
            try:
                found += os.stat(os.path.join(root, file)).st_size
            except FileNotFoundError:  # evicted meanwhile
                continue
    return found
