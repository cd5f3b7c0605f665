"""Words that are missing from an encoder's training vocabulary; a model cannot depict such words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from pathlib import Path

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
KNOWN_WORDS = "known_words.json"
FUNCTION_WORDS = frozenset(
    ("a", "an", "the", "and", "or", "of", "in", "on", "at", "by", "to", "for", "from", "with", "into", "is", "are")
)
"""Words that name nothing: every vocabulary has them, so that they say little about whether a prompt is known."""


def read_known_words(folder: Path) -> frozenset[str] | None:
    """Return the words listed beside the encoder, or None without a list.

    The file holds a list, or `{"words": […], "ignored": […]}`.
    """
    path = folder / KNOWN_WORDS
    if not path.is_file():
        return None
    listed = json.loads(path.read_text())
    words = [*listed["words"], *listed.get("ignored", ())] if isinstance(listed, dict) else listed
    return frozenset(part for word in words for part in _WORD.findall(str(word).lower()))


def unknown_share(text: str, unknown: Collection[str]) -> float:
    """Return the share of `unknown_words` among the text's distinct words that name something; 0 without such words."""
    named = set(_WORD.findall(text.lower())) - FUNCTION_WORDS
    return len(named.intersection(unknown)) / len(named) if named else 0.0


def unknown_words(text: str, known: Callable[[str], bool]) -> tuple[str, ...]:
    """Return the text's words for which `known` is false: lower case, each once, in order.

    A hyphenated word is known when its parts are known.
    """
    unknown = []
    for word in dict.fromkeys(_WORD.findall(text.lower())):
        parts = re.split(r"['’-]", word)
        if not known(word) and not all(known(part) for part in parts):
            unknown.append(word)
    return tuple(unknown)
