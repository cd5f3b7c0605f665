"""Study files of tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def written(path: Path, **keys: Any) -> str:
    """Write a study file with these keys, a dictionary as a table, and return its path."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items() if not isinstance(value, dict)]
    for name, table in keys.items():
        if isinstance(table, dict):
            lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)
