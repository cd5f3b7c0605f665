"""Read a TOML file of settings, and name what is wrong with it in one line."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from shared.domain.errors import ConfigurationError


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Return the keys of a file. Raises ConfigurationError with `what`, such as "config", and the path."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(f"{what} {path}: no such file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{what} {path}: cannot be read as TOML: {error}") from error
