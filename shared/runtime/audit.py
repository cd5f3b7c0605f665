"""The audit log: who did what to keys, cache and services, with which outcome. It has no prompts and no secrets."""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

import structlog

from shared.domain.errors import AfterimageError
from shared.runtime.datadir import private_folder, private_opener
from shared.runtime.telemetry import configure_logging, log

FILE = "audit.jsonl"
"""File in the data directory: one JSON object per line, oldest first; `.1` to `.5` are older files."""
READS = "audit-reads.jsonl"
"""File of what tenants' admins read. It rotates alone, so reads never push out acts."""
REFUSALS = "audit-refusals.jsonl"
"""File of refused calls of operators' methods and refused erasures, so that these never push out acts."""
FILES = (FILE, READS, REFUSALS)
MOST_BYTES, KEPT = 10 * 2**20, 5
FILE_AGE, KEPT_AGE = timedelta(days=90), timedelta(days=365)
"""Age of a file's first line at which the file rotates, and of an older file's last line at which that file goes."""
LOOK_EVERY_S = 3600.0
"""Least seconds between two looks of a process at these ages."""
LONGEST = 300
"""Most bytes of a field's JSON."""
_look_at: dict[Path, float] = {}


def record(
    data_dir: Path, *, actor: str, action: str, target: str = "", outcome: str = "done", file: str = FILE
) -> None:
    """Append one line, and log it where this process keeps a log: a container may have no folder that lasts.

    A full disk or a read-only folder is logged, and the action goes on.
    """
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    fields = {"actor": actor, "action": action, "target": target, "outcome": outcome}
    fields = {name: _cut(value) for name, value in fields.items()}
    line = json.dumps({"time": now} | fields)
    if structlog.is_configured():
        log("audit").info("audit", **fields)
    path = data_dir / file
    try:
        private_folder(data_dir, tighten=False)
        _rotate_if_due(path)
        with open(path, "a", opener=private_opener) as lines:  # one write of one line: processes do not mix theirs
            lines.write(f"{line}\n")
    except OSError as error:
        if not structlog.is_configured():  # a command, whose output others read
            configure_logging("error")
        log("audit").error("audit line not written", error=str(error), **fields)


@dataclass
class Outcome:
    """The outcome in the line of a block that ends without an error."""

    said: str = "done"


@contextmanager
def recorded(data_dir: Path, *, actor: str, action: str, target: str = "") -> Iterator[Outcome]:
    """Append one line when the block ends: with the code of its error if it fails."""
    outcome, said = Outcome(), "interrupted"
    try:
        yield outcome
        said = outcome.said
    except AfterimageError as error:
        said = error.code
        raise
    except Exception as error:
        said = type(error).__name__
        raise
    finally:
        record(data_dir, actor=actor, action=action, target=target, outcome=said)


def local_actor() -> str:
    """Return the actor of a command on this machine: the account that runs it."""
    try:
        return f"local:{getpass.getuser()}"
    except (OSError, KeyError):  # an account without a name
        return f"local:{os.geteuid()}"


def _cut(text: str) -> str:
    """Return the beginning of a text whose JSON has LONGEST bytes at most, beside the quotes."""
    if len(json.dumps(text[: LONGEST + 1])) <= LONGEST + 2:
        return text
    ends = accumulate(len(json.dumps(char)) - 2 for char in text[:LONGEST])
    return text[: sum(end <= LONGEST for end in ends)]


def _rotate_if_due(path: Path) -> None:
    """Rename a file that is full, or whose first line is too old; once in LOOK_EVERY_S also remove older files that are
    too old."""
    look = time.monotonic() >= _look_at.get(path, 0.0)
    with suppress(FileNotFoundError):  # there is none yet, or another process renames or removes the same ones
        if look:
            _look_at[path] = time.monotonic() + LOOK_EVERY_S
            _remove_old(path)
        if not look and path.stat().st_size < MOST_BYTES:
            return
        with open(path, "r+b") as lines:
            fcntl.flock(lines, fcntl.LOCK_EX)
            # of the opened file, and under the lock: another process may have rotated since the look
            if _due(lines) and os.path.samestat(os.fstat(lines.fileno()), path.stat()):
                _shift(path)


def _due(lines: BinaryIO) -> bool:
    if os.fstat(lines.fileno()).st_size >= MOST_BYTES:
        return True
    oldest = (datetime.now(UTC) - FILE_AGE).isoformat(timespec="milliseconds")
    first = lines.readline()  # a line begins with its time; none, where a full disk took no line
    return bool(first) and first < f'{{"time": "{oldest}'.encode()


def _remove_old(path: Path) -> None:
    before = (datetime.now(UTC) - KEPT_AGE).timestamp()
    for older in (path.with_name(f"{path.name}.{number}") for number in range(1, KEPT + 1)):
        if older.exists() and older.stat().st_mtime < before:
            older.unlink()


def _shift(path: Path) -> None:
    for number in range(KEPT - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number + 1}"))
    path.replace(path.with_name(f"{path.name}.1"))
