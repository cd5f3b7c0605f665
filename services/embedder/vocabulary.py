"""Words an encoder was never shown, so that a picture that misses them is no surprise."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
KNOWN_WORDS = "known_words.json"


def read_known_words(folder: Path) -> frozenset[str] | None:
    """The words listed beside the encoder: a list, or `{"words": […], "ignored": […]}`; None when there is no list."""
    path = folder / KNOWN_WORDS
    if not path.is_file():
        return None
    listed = json.loads(path.read_text())
    words = [*listed["words"], *listed.get("ignored", ())] if isinstance(listed, dict) else listed
    return frozenset(part for word in words for part in _WORD.findall(str(word).lower()))


def unknown_words(text: str, known: Callable[[str], bool]) -> tuple[str, ...]:
    """The text's words that `known` does not know, lower case, each once, in their order.

    A hyphenated word is known when its parts are.
    """
    unknown = []
    for word in dict.fromkeys(_WORD.findall(text.lower())):
        parts = re.split(r"['’-]", word)
        if not known(word) and not all(known(part) for part in parts):
            unknown.append(word)
    return tuple(unknown)
