"""Warnings about a prompt whose end was ignored by the search's encoder, or by the model that generates the image."""

from __future__ import annotations

from collections.abc import Iterable

UNSEARCHED = "the prompt is longer than the encoder reads; the search ignores its end"
"""Warning at acceptance, when only the search has read the prompt."""
_UNDRAWN = "prompt: only the first "


def undrawn(read: int, length: int) -> str:
    """Return the warning that the model read `read` of the prompt's `length` tokens."""
    return f"{_UNDRAWN}{read} of {length} tokens were read"


def of_negative(warning: str) -> str:
    """Return the warning of `undrawn`, for the negative prompt."""
    return f"negative_{warning}" if warning.startswith(_UNDRAWN) else warning


def told_once(warnings: Iterable[str]) -> tuple[str, ...]:
    """Return each warning once; of two warnings about a long prompt, keep the model's, which has the token numbers."""
    once = tuple(dict.fromkeys(warnings))
    if any(warning.startswith(_UNDRAWN) for warning in once):
        return tuple(warning for warning in once if warning != UNSEARCHED)
    return once
