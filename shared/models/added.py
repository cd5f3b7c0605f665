"""Names that a person gave to models, kept in the data directory: `afterimage models add`."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from shared.errors import ModelError
from shared.models.checkpoint import read_json

FILE = "models.json"
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def added(data_dir: Path) -> dict[str, str]:
    """Path or hub id by name."""
    return {name: str(path) for name, path in read_json(data_dir / FILE).items()}


def add(data_dir: Path, name: str, path: str) -> None:
    """Registers a name, or gives a registered one another path. Raises ModelError for a name that cannot be one."""
    if not NAME.fullmatch(name):
        raise ModelError(f"name: must be lower-case letters, digits, '.', '_' or '-', at most 63 (got {name!r})")
    data_dir.mkdir(parents=True, exist_ok=True)
    whole = data_dir / f"{FILE}.new"
    whole.write_text(json.dumps({**added(data_dir), name: path}, indent=2) + "\n")
    os.replace(whole, data_dir / FILE)
