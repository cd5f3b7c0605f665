"""Relation of a request to an entry: re-roll, edit, new topic, or another user's (docs/adr/0012-relation.md)."""

from __future__ import annotations

import re
from functools import lru_cache

from shared.domain.types import Entry, Relation, Request

CLOSE_WORDS = 0.5
"""Jaccard similarity of two prompts' words above which one prompt is an edit of the other (load/edit_structure.py)."""
CLOSE_SIMILARITY = 0.75
"""Cosine of two prompts above which one is an edit of the other. In bench/k_quality.md, prompts that differ in one
attribute have at least .77, and prompts that differ in the object at most .75."""
_WORD = re.compile(r"[^\W_]+")


def relation(request: Request, entry: Entry | Request, similarity: float = -1.0) -> Relation:
    """Return the relation of the request to the entry, or to an earlier request.

    similarity: the cosine of the two prompts; −1 where only the similarity to the entry's image is known. The same
    prompt with the same seed is an edit: something else about the request changed.
    """
    if not request.user or (request.tenant, request.user) != (entry.tenant, entry.user):
        return Relation.OTHER
    asked, made = normalised(request.prompt), normalised(entry.prompt)
    if asked == made:
        return Relation.EDIT if request.seed == entry.seed else Relation.REROLL
    close = similarity > CLOSE_SIMILARITY or jaccard(asked, made) > CLOSE_WORDS
    return Relation.EDIT if close else Relation.TOPIC


@lru_cache(maxsize=4096)  # one plan compares up to 64 entries, most of them of the same few prompts
def normalised(prompt: str) -> str:
    """Return the prompt's words in lower case, in order, without punctuation; a text without words as it is."""
    return " ".join(_WORD.findall(prompt.casefold())) or prompt.strip()


def jaccard(one: str, other: str) -> float:
    """Return the share of two normalised prompts' distinct words that both contain; 0 without words."""
    words, others = set(one.split()), set(other.split())
    return len(words & others) / len(words | others) if words | others else 0.0
