"""What every extraction must hold: pieces of the prompt that are apart and cut no word."""

from __future__ import annotations

from itertools import chain

from services.text_extractor import Extraction


def whole_words(prompt: str, found: Extraction) -> bool:
    """Return whether both spans lie apart in the prompt, with no letter or digit on both sides of an edge."""
    spans = sorted(span for span in (found.object, found.background) if span is not None)
    edges = list(chain.from_iterable(spans))
    ordered = (
        all(start < end for start, end in spans) and edges == sorted(edges) and max(edges, default=0) <= len(prompt)
    )
    return ordered and not any(prompt[at - 1 : at].isalnum() and prompt[at : at + 1].isalnum() for at in edges)
