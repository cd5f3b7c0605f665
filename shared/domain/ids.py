"""Ids of jobs and entries: opaque, unique, and in order of time when sorted as text."""

from __future__ import annotations

import os
import re
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32, without letters that look like digits

_ID = re.compile(f"[{_ALPHABET}]{{26}}")
_WORD = re.compile(rf"(?<![0-9a-z]){_ID.pattern}(?![0-9a-z])")


def is_id(text: str) -> bool:
    """Return whether the text has the form of an id from `new_id`."""
    return _ID.fullmatch(text) is not None


def ids_in(text: str) -> set[str]:
    """Return the ids that the text names."""
    return set(_WORD.findall(text))


def new_id() -> str:
    """Return 26 characters: 48 bits of milliseconds, then 80 random bits (the ULID layout)."""
    number = (time.time_ns() // 1_000_000 << 80) | int.from_bytes(os.urandom(10), "big")
    return "".join(_ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5))
