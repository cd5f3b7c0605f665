"""User-defined names of models, stored in the data directory: `afterimage models add` and `remove`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from shared.domain.errors import ModelError
from shared.models.checkpoint import read_json
from shared.runtime.datadir import private_folder

FILE = "models.json"
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def added(data_dir: Path) -> dict[str, str]:
    """Return path or hub id by name."""
    return {name: str(path) for name, path in read_json(data_dir / FILE).items()}


def add(data_dir: Path, name: str, path: str) -> None:
    """Register a name, or change the path of a registered one. Raise ModelError for an invalid name."""
    if not NAME.fullmatch(name):
        raise ModelError(f"name: must be lower-case letters, digits, '.', '_' or '-', at most 63 (got {name!r})")
    _write(data_dir, {**added(data_dir), name: path})


def remove(data_dir: Path, name: str) -> str:
    """Remove a registered name and return its path or hub id. Raise ModelError for an unknown name."""
    known = added(data_dir)
    if name not in known:
        given = ", ".join(sorted(known)) or "none"
        raise ModelError(f"name: {name!r} was not given by `models add` in {data_dir} (there are: {given})")
    path = known.pop(name)
    _write(data_dir, known)
    return path


def copy(data_dir: Path, to: Path) -> None:
    """Register the same names in another data directory."""
    if known := added(data_dir):
        _write(to, known)


def _write(data_dir: Path, names: Mapping[str, str]) -> None:
    private_folder(data_dir)
    whole = data_dir / f"{FILE}.new"
    whole.write_text(json.dumps(names, indent=2) + "\n")
    os.replace(whole, data_dir / FILE)
