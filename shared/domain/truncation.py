"""What is said of a prompt whose end was not read: by the encoder that searches the cache, by the model that draws."""

from __future__ import annotations

from collections.abc import Iterable

UNSEARCHED = "the prompt is longer than the encoder reads; the search ignores its end"
"""Said at acceptance, when the search alone has read the prompt."""
_UNDRAWN = "prompt: only the first "


def undrawn(read: int, length: int) -> str:
    """The model read `read` of the prompt's `length` tokens."""
    return f"{_UNDRAWN}{read} of {length} tokens were read"


def of_negative(warning: str) -> str:
    """What `undrawn` says, of the negative prompt."""
    return f"negative_{warning}" if warning.startswith(_UNDRAWN) else warning


def told_once(warnings: Iterable[str]) -> tuple[str, ...]:
    """Each warning once, and one for a prompt that is too long: the model's, which says how far it was read."""
    once = tuple(dict.fromkeys(warnings))
    if any(warning.startswith(_UNDRAWN) for warning in once):
        return tuple(warning for warning in once if warning != UNSEARCHED)
    return once
