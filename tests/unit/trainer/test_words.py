"""The tokenizer knows the grammar's words whole and survives any other."""

from __future__ import annotations

import random
from pathlib import Path

from services.trainer.clip_pair import tokenizer_at
from services.trainer.words import LENGTH, Words, sprinkled
from shared.models.scenes import WORDINGS, caption, known_words, random_scene


def test_every_known_word_is_one_token_or_two(tmp_path: Path) -> None:
    tokenizer = tokenizer_at(tmp_path)
    assert [word for word in known_words() if len(tokenizer.tokenize(word)) > 2] == []
    assert len(tokenizer.tokenize("sunflowers")) == 1


def test_captions_fit(tmp_path: Path) -> None:
    words, rng = Words(tokenizer_at(tmp_path)), random.Random(0)
    for i in range(500):
        ids = words.ids(caption(random_scene(rng), i % WORDINGS))
        assert len(ids) == LENGTH
        assert ids[-1] == words.end
        assert ids[0] == words.start


def test_strange_words_and_scripts_are_tokens_too(tmp_path: Path) -> None:
    words = Words(tokenizer_at(tmp_path))
    for text in ("a zebra riding a tram", "лиса в снегу", "狐", "🦊", "x" * 500):
        ids = words.ids(text)
        assert len(ids) == LENGTH
        assert max(ids) < words.size
    assert words.ids("a zebra") != words.ids("a fox")


def test_the_saved_tokenizer_is_the_learned_one(tmp_path: Path) -> None:
    assert Words(tokenizer_at(tmp_path)).ids("a red fox") == Words(tokenizer_at(tmp_path)).ids("a red fox")


def test_sprinkling_keeps_every_word_in_order() -> None:
    rng = random.Random(0)
    text = "two red foxes in the snow"
    for _ in range(50):
        rest = iter(sprinkled(text, rng).split(" "))
        assert all(word in rest for word in text.split(" "))
