"""Read and write a profile as one JSON file; wrong files are named with field and rule."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import get_args

from pydantic import BaseModel, ValidationError

from services.trainer.pipeline.costs.profile import Profile
from shared.domain.errors import ConfigurationError

LONGEST = 80
"""Characters of a wrong value that a message shows."""


def read_profile(path: Path) -> Profile:
    """Return the profile in a file. Raises ConfigurationError with path, field and rule."""
    try:
        return parse_profile(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        raise ConfigurationError(f"profile {path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"profile {path}: cannot be read: {error}") from error


def parse_profile(text: str, name: str) -> Profile:
    """Return the profile in a JSON text; `name` begins the message of a ConfigurationError."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"profile {name}: must be JSON: {error}") from None
    try:
        return Profile.model_validate(content, strict=False)
    except ValidationError as error:
        raise ConfigurationError(f"profile {name}: {broken_rule(error)}") from None


def broken_rule(error: ValidationError) -> str:
    """Return the first broken rule as `field: rule (got value)`; list items are counted from 0."""
    first = error.errors()[0]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    rule = str(first["msg"]).removeprefix("Value error, ")
    simple = first["type"] not in ("missing", "value_error", "extra_forbidden")
    got = f" (got {repr(first['input'])[:LONGEST]})" if simple else ""
    return f"{field}: {rule}{got}" if field else f"{rule}{got}"


def broken_setting(error: ValidationError, settings: type[BaseModel]) -> str:
    """Return the first broken rule of a settings file in one line; an unknown key with the most similar known key."""
    first = error.errors()[0]
    if first["type"] != "extra_forbidden":
        rule = broken_rule(error)
        return rule if first["loc"] else f"settings: {rule}"
    *tables, key = map(str, first["loc"])
    for name in tables:
        annotation = settings.model_fields[name].annotation
        settings = next(one for one in (annotation, *get_args(annotation)) if hasattr(one, "model_fields"))
    nearest = difflib.get_close_matches(key, settings.model_fields, n=1)
    said = f"{'.'.join([*tables, key])}: no such key"
    return said + (f"; did you mean {nearest[0]}?" if nearest else f"; there are {', '.join(settings.model_fields)}")


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile so that `read_profile` returns an equal one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(profile.model_dump_json(indent=1) + "\n", encoding="utf-8")
