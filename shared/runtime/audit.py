"""The audit log: who did what to keys, cache and services, with which outcome. It has no prompts and no secrets."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from shared.domain.errors import AfterimageError
from shared.runtime.datadir import private_folder, private_opener
from shared.runtime.telemetry import log

FILE = "audit.jsonl"
"""File in the data directory: one JSON object per line, oldest first; `.1` to `.5` are older files."""
READS = "audit-reads.jsonl"
"""File of what tenants' admins read. It rotates alone, so reads never push out acts."""
MOST_BYTES, KEPT = 10 * 2**20, 5
LONGEST = 200


def record(
    data_dir: Path, *, actor: str, action: str, target: str = "", outcome: str = "done", file: str = FILE
) -> None:
    """Append one line, and log it where this process keeps a log: a container may have no folder that lasts.

    A full disk or a read-only folder is logged, and the action goes on.
    """
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    fields = {"actor": actor, "action": action, "target": target, "outcome": outcome}
    fields = {name: value[:LONGEST] for name, value in fields.items()}
    line = json.dumps({"time": now} | fields)
    if structlog.is_configured():
        log("audit").info("audit", **fields)
    path = data_dir / file
    try:
        private_folder(data_dir, tighten=False)
        _rotate(path)
        with open(path, "a", opener=private_opener) as lines:  # one write of one line: processes do not mix theirs
            lines.write(f"{line}\n")
    except OSError as error:
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


def _rotate(path: Path) -> None:
    with suppress(FileNotFoundError):  # there is none yet, or another process renames the same ones
        if path.stat().st_size < MOST_BYTES:
            return
        for number in range(KEPT - 1, 0, -1):
            older = path.with_name(f"{path.name}.{number}")
            if older.exists():
                older.replace(path.with_name(f"{path.name}.{number + 1}"))
        path.replace(path.with_name(f"{path.name}.1"))
