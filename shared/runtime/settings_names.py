"""What is wrong with the AFTERIMAGE_* variables: names that no setting has, which would otherwise do nothing without a
word, and values that no setting takes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from shared.runtime.settings import Settings

PREFIX = "AFTERIMAGE_"
ELSEWHERE = ("AFTERIMAGE_TORCH", "AFTERIMAGE_SPRITES")
"""Read by the installation and by the renderer."""
FAMILIES = ("AFTERIMAGE_TEST_", "AFTERIMAGE_LOAD_")
"""Read by the tests and by the load generator."""
RETIRED = {
    "INTERNAL_LISTEN": "a private unix socket",
    "LCBFU_TIE": "oldest_use",
    "SVM_NYSTROEM": "0, a linear SVM",
    "REMEMBERED_ENTRIES": "10,000",
    "EMBED_BATCH_MAX": "32",
}
"""Former settings, and the values that are constants now. A start ignores such a variable and says so."""
LONGEST = 200
"""Characters of a value that are shown."""


def misspelt(names: Iterable[str]) -> list[str]:
    """One line for each of these variables that looks like a setting and is none, with the nearest that is one; of a
    former setting, with its value now."""
    known = [field.upper() for field in Settings.model_fields]
    lines = []
    for name in sorted(names):
        upper = name.upper()
        ours = upper.startswith(PREFIX) and not upper.startswith(FAMILIES) and upper not in ELSEWHERE
        if not ours or upper.removeprefix(PREFIX) in known:
            continue
        if (value := RETIRED.get(upper.removeprefix(PREFIX))) is not None:
            lines.append(f"{name}: no longer a setting, so it does nothing; the value is always {value}")
            continue
        nearest = difflib.get_close_matches(upper.removeprefix(PREFIX), known, n=1)
        meant = f"did you mean {PREFIX}{nearest[0]}?" if nearest else "shared/runtime/settings lists them all"
        lines.append(f"{name}: no such setting, so it does nothing; {meant}")
    return lines


def in_words(error: ValidationError) -> str:
    """The first broken rule of a setting, in one line; of a value that is long, its beginning."""
    first: Any = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    got = "" if first["type"] == "missing" else f" (got {repr(first['input'])[:LONGEST]})"
    return f"{name}: {first['msg']}{got}" if name else str(first["msg"])
