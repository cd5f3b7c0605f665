"""Borders that the bundled extractor marks: from labels to places, and from scores to spans."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from shared.models.borders import AGAIN, END, PAD, START, Reading, marked, padded, reading, targets

LETTERS = [PAD, START, AGAIN, END, *"abcdefghijklmnopqrstuvwxyz,.", "unk"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """One token for each letter."""
    found = Tokenizer(models.BPE({one: n for n, one in enumerate(LETTERS)}, [], unk_token="unk"))
    found.pre_tokenizer = pre_tokenizers.Whitespace()
    return found


def scored(prompt: Reading, places: tuple[int, ...], by: float = 9.0) -> np.ndarray:
    scores = np.zeros((len(prompt.characters) + 1, 4), np.float32)
    for label, at in enumerate(places):
        scores[at, label] = by
    return scores


def test_a_prompt_is_read_twice(tokenizer: Tokenizer) -> None:
    one = reading(tokenizer, "ab c", 77)
    ids = tokenizer.encode("ab c").ids
    assert one.ids == (1, *ids, 2, *ids, 3)
    assert one.ids[one.first : -1] == tuple(ids)
    assert (one.begins, one.ends) == ((True, False, True), (False, True, True))
    assert len(reading(tokenizer, "ab c", 2).characters) == 2


def test_borders_come_back(tokenizer: Tokenizer) -> None:
    text = "fox in snow, ok"
    one = reading(tokenizer, text, 77)
    for spans in (((0, 3), (4, 11)), ((0, 3), None), (None, None), ((4, 6), (13, 15))):
        thing, place, least = marked(one, scored(one, targets(one, spans)))
        assert (thing, place) == spans
        assert least > 0.5
    assert marked(one, scored(one, targets(one, ((0, 3), None)), by=0.1))[2] < 0.5


def test_spans_do_not_overlap(tokenizer: Tokenizer) -> None:
    one = reading(tokenizer, "fox in snow", 77)
    places = targets(one, ((0, 6), (4, 11)))
    thing, place, _ = marked(one, scored(one, places))
    assert thing is None or place is None or thing[1] <= place[0] or place[1] <= thing[0]


@given(st.text(alphabet="abc ,🦊", max_size=40), st.integers(0, 2**32 - 1))
def test_any_scores_give_pieces_of_the_prompt(tokenizer: Tokenizer, prompt: str, seed: int) -> None:
    one = reading(tokenizer, prompt, 24)
    scores = np.random.default_rng(seed).normal(size=(len(one.characters) + 1, 4)).astype(np.float32) * 5
    thing, place, least = marked(one, scores)
    assert all(0 <= a < b <= len(prompt) for a, b in filter(None, (thing, place)))
    assert 0 <= least <= 1


def test_shorter_prompts_are_padded(tokenizer: Tokenizer) -> None:
    ids, mask = padded([reading(tokenizer, text, 77) for text in ("a", "abc")], 0)
    assert ids.shape == mask.shape == (2, 9)
    assert mask.sum(axis=1).tolist() == [5, 9]
