"""The text that the trained extractor reads, and the borders that it marks: input ids, and spans from scores.

The model is a Llama with one linear layer on top (transformers' LlamaForTokenClassification). It reads the prompt
twice, since a causal model has seen the whole prompt only at its second reading. There it gives each token four scores:
object begins, object ends, background begins, background ends. The last token has the scores of "none".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from shared.models.word_caches import keeping_no_words

Span: TypeAlias = tuple[int, int]
Scores: TypeAlias = npt.NDArray[np.float32]
LABELS = ("object begins", "object ends", "background begins", "background ends")
TOKENIZER = "tokenizer.json"
START, AGAIN, END, PAD = "<s>", "<again>", "</s>", "<pad>"
BEST = 8
"""Spans of each part that are combined."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A prompt as the model reads it: input ids, and the characters of the tokens of its second reading."""

    ids: tuple[int, ...]
    characters: tuple[Span, ...]
    begins: tuple[bool, ...]
    """Whether a span may begin at the token: it begins a word."""
    ends: tuple[bool, ...]

    @property
    def first(self) -> int:
        """Return the place of the second reading's first token."""
        return len(self.characters) + 2


def read_tokenizer(folder: Path) -> Tokenizer:
    return keeping_no_words(Tokenizer.from_file(str(folder / TOKENIZER)))


def special(tokenizer: Tokenizer, name: str) -> int:
    """Return the id of START, AGAIN, END or PAD. Raise ValueError for a tokenizer without it."""
    found = tokenizer.token_to_id(name)
    if found is None:
        raise ValueError(f"tokenizer must have the token {name}")
    return int(found)


def reading(tokenizer: Tokenizer, prompt: str, most: int) -> Reading:
    """Return the first `most` tokens of a prompt, twice."""
    found = tokenizer.encode(prompt, add_special_tokens=False)
    ids, characters, words = found.ids[:most], found.offsets[:most], found.word_ids[:most]
    start, again, end = (special(tokenizer, one) for one in (START, AGAIN, END))
    count, texts = len(ids), [any(map(str.isalnum, prompt[slice(*one)])) for one in characters]
    begins = [texts[at] and (at == 0 or words[at - 1] != words[at]) for at in range(count)]
    ends = [texts[at] and (at == count - 1 or words[at + 1] != words[at]) for at in range(count)]
    return Reading((start, *ids, again, *ids, end), tuple(characters), tuple(begins), tuple(ends))


def targets(prompt: Reading, spans: Sequence[Span | None]) -> tuple[int, ...]:
    """Return the places of the four borders in the second reading; the number of its tokens stands for none."""
    places: list[int] = []
    none = len(prompt.characters)
    for span in spans:
        inside = [at for at, (start, end) in enumerate(prompt.characters) if span and span[0] < end and start < span[1]]
        places += [inside[0], inside[-1]] if inside else [none, none]
    return tuple(places)


def marked(prompt: Reading, scores: Scores) -> tuple[Span | None, Span | None, float]:
    """Return object and background, which do not overlap, and the least probability of their borders.

    scores: those of the second reading and of the last token, shape (tokens + 1, 4).
    """
    logs = scores - np.logaddexp.reduce(_allowed(prompt, scores), axis=0)
    best = -math.inf, (-1, -1), (-1, -1)
    for thing, one in _spans(prompt, logs[:, :2]):
        for place, other in _spans(prompt, logs[:, 2:]):
            apart = thing[1] < place[0] or place[1] < thing[0] or min(thing[0], place[0]) < 0
            if apart and one + other > best[0]:
                best = one + other, thing, place
    none = len(prompt.characters)
    places = [at if at >= 0 else none for span in best[1:] for at in span]
    least = min(float(np.exp(logs[at, label])) for label, at in enumerate(places))
    first, second = (
        (prompt.characters[one[0]][0], prompt.characters[one[1]][1]) if one[0] >= 0 else None for one in best[1:]
    )
    return first, second, least


def _allowed(prompt: Reading, scores: Scores) -> Scores:
    """Return the scores, with −∞ where no word begins or ends."""
    open_ = np.array([(*pair, *pair) for pair in zip(prompt.begins, prompt.ends, strict=True)] + [(True,) * 4])
    return np.where(open_, scores, -np.inf)


def _spans(prompt: Reading, logs: Scores) -> list[tuple[Span, float]]:
    """Return the likeliest spans (first token, last token) with their log probabilities, and none as (−1, −1)."""
    count = len(prompt.characters)
    found: list[tuple[Span, float]] = [((-1, -1), float(logs[count].sum()))]
    begins, ends = (np.flatnonzero(np.array(one, bool)) for one in (prompt.begins, prompt.ends))
    if len(begins):
        sums = logs[begins, 0][:, None] + logs[ends, 1][None, :]
        sums = np.where(ends[None, :] >= begins[:, None], sums, -np.inf)
        for at in np.argsort(sums, axis=None)[::-1][:BEST]:
            row, column = divmod(int(at), len(ends))
            if np.isfinite(sums[row, column]):
                found.append(((int(begins[row]), int(ends[column])), float(sums[row, column])))
    return found


def padded(readings: Sequence[Reading], pad: int) -> tuple[Any, Any]:
    """Return input ids and attention mask as numpy arrays, padded at their ends."""
    longest = max(len(one.ids) for one in readings)
    ids = np.full((len(readings), longest), pad, np.int64)
    mask = np.zeros((len(readings), longest), np.int64)
    for row, one in enumerate(readings):
        ids[row, : len(one.ids)], mask[row, : len(one.ids)] = one.ids, 1
    return ids, mask
