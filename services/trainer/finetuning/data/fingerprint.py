"""Fingerprint of what a run reads: a digest of each file of the data set and the model, kept beside the index."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from services.trainer.finetuning.data.index import THREADS
from shared.runtime.progress import Remaining


@dataclass(frozen=True, slots=True)
class FileState:
    """One file as it was when it was last read.

    Size and time tell without a read that a file is unchanged. The digest decides where they differ: a copy or a
    fresh checkout of the same data has other times.
    """

    size_bytes: int
    mtime_ns: int
    sha256: str


Fingerprint = Mapping[str, FileState]
"""States of files by their names."""


def fingerprint(
    files: Mapping[str, Path], before: Fingerprint, say: Callable[[str], None] = lambda line: None
) -> dict[str, FileState]:
    """Return the states of the files that can be read; one whose size and time are those of `before` is not read."""
    remaining = Remaining("checking files", len(files), say=say)
    states: dict[str, FileState] = {}
    with ThreadPoolExecutor(THREADS) as threads:
        found = threads.map(lambda name: _state(files[name], before.get(name)), files)
        for name, state in zip(files, found, strict=True):
            remaining.advance()
            if state is not None:
                states[name] = state
    return states


def difference(before: Fingerprint, now: Fingerprint) -> str:
    """Return how the first file that differs differs, in words; empty where the contents are the same."""
    for name in sorted(before.keys() | now.keys()):
        if name not in now:
            return f"{name} is missing"
        if name not in before:
            return f"{name} is new"
        if before[name].sha256 != now[name].sha256:
            return f"{name} has other contents"
    return ""


def read_fingerprint(path: Path) -> dict[str, FileState] | None:
    """Return the fingerprint in a file; None without one, or for one that cannot be read."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return {row.pop("name"): FileState(**row) for row in rows}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_fingerprint(path: Path, states: Fingerprint) -> None:
    """Write a fingerprint that `read_fingerprint` returns."""
    lines = (json.dumps({"name": name, **asdict(state)}) + "\n" for name, state in states.items())
    partial = path.with_suffix(".partial")
    partial.write_text("".join(lines), encoding="utf-8")
    os.replace(partial, path)


def _state(path: Path, before: FileState | None) -> FileState | None:
    """Return a file's state; None for a file that cannot be read: the index names it as broken."""
    try:
        status = os.stat(path)
        if before is not None and (before.size_bytes, before.mtime_ns) == (status.st_size, status.st_mtime_ns):
            return before
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        return None
    return FileState(status.st_size, status.st_mtime_ns, digest)
