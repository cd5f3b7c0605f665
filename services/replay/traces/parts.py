"""Object and background of each prompt, and each request's nearest earlier requests by either (FlexCache §4.2.1)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from services.text_extractor.grammar import Grammar
from shared.domain.parts import Parts

Ints = npt.NDArray[np.int64]


def parts_of(prompts: Sequence[str]) -> list[Parts]:
    """Return the parts of each prompt by the default extractor; both "" where it is not sure, or names only one: a
    search by parts needs both (FlexCache §3.2)."""
    texts = list(dict.fromkeys(prompts))
    extracted = zip(texts, Grammar().extract(texts), strict=True)
    found = {text: one.parts(text) for text, one in extracted if one.sure}
    return [one if (one := found.get(prompt, Parts())).both else Parts() for prompt in prompts]


def groups_of(parts: Sequence[Parts], group_of: Ints | None) -> Ints:
    """Return each request's group, shape (requests,); a request without both parts is alone in its own."""
    groups = np.zeros(len(parts), np.int64) if group_of is None else group_of.copy()
    alone = np.array([not one.both for one in parts])
    groups[alone] = -1 - np.flatnonzero(alone)
    return groups


def digest_of(said: Sequence[str]) -> str:
    """Return 16 hex digits over the texts in order."""
    return hashlib.blake2b("\0".join(said).encode(), digest_size=8).hexdigest()
