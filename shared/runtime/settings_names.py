"""Messages about wrong AFTERIMAGE_* variables: unknown names, which would otherwise be ignored, and wrong values."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError
from pydantic_settings import SettingsError

from shared.runtime.settings import Settings

PREFIX = "AFTERIMAGE_"
ELSEWHERE = (
    "AFTERIMAGE_TORCH", "AFTERIMAGE_SPRITES", "AFTERIMAGE_API_KEY", "AFTERIMAGE_TLS_CA", "AFTERIMAGE_KEY_IN_PLAIN_TEXT"
)  # fmt: skip
"""Variables that the installation, the renderer and clients read."""
FAMILIES = ("AFTERIMAGE_TEST_", "AFTERIMAGE_LOAD_")
"""Prefixes of variables that the tests and the load generator read."""
RETIRED = {
    "INTERNAL_LISTEN": "a private unix socket",
    "LCBFU_TIE": "oldest_use",
    "SVM_NYSTROEM": "0, a linear SVM",
    "REMEMBERED_ENTRIES": "10,000",
    "EMBED_BATCH_MAX": "32",
    "PICTURE_MAX_AGE_S": "that of cache_max_age_s",
}
"""Former settings with their values: constants, or those of another setting. At its start, a process ignores such a
variable and logs a line."""
LONGEST = 200
"""Characters of a value that a message shows."""


def misspelt(names: Iterable[str]) -> list[str]:
    """Return one line for each variable that looks like a setting and is none.

    The line has the nearest setting, or, for a former setting, its constant value.
    """
    known = [field.upper() for field in Settings.model_fields]
    lines = []
    for name in sorted(names):
        upper = name.upper()
        ours = upper.startswith(PREFIX) and not upper.startswith(FAMILIES) and upper not in ELSEWHERE
        if not ours or upper.removeprefix(PREFIX) in known:
            continue
        if (value := RETIRED.get(upper.removeprefix(PREFIX))) is not None:
            lines.append(f"{name}: no longer a setting, so it has no effect; the value is always {value}")
            continue
        nearest = difflib.get_close_matches(upper.removeprefix(PREFIX), known, n=1)
        meant = f"did you mean {PREFIX}{nearest[0]}?" if nearest else "docs/reference/settings.md lists all settings"
        lines.append(f"{name}: no such setting, so it has no effect; {meant}")
    return lines


WRONG = (ValidationError, SettingsError)
"""Errors that reading the settings raises."""


def in_words(error: ValidationError | SettingsError) -> str:
    """Return the first broken rule of a setting in one line, with the beginning of a long value."""
    return every_in_words(error)[0]


def every_in_words(error: ValidationError | SettingsError) -> list[str]:
    """Return every broken rule, as `in_words` does."""
    if isinstance(error, SettingsError):  # a variable whose value is read as JSON
        name = re.search(r'field "(\w+)"', str(error))
        return [f"{name[1]}: must be JSON ({error.__cause__})" if name else str(error)]
    return [_in_words(one) for one in error.errors()]


def _in_words(broken: Any) -> str:
    name = ".".join(str(part) for part in broken["loc"])
    got = "" if broken["type"] == "missing" else f" (got {repr(broken['input'])[:LONGEST]})"
    rule = str(broken["msg"]).removeprefix("Value error, ")
    return f"{name}: {rule}{got}" if name else rule
