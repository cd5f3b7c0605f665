"""Tokenizers lose their cache of words: it would keep words of prompts until the process ends."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from shared.models.word_caches import keeping_no_words

WORDS = [f"bb{number}" for number in range(500)]


def new() -> Tokenizer:
    return Tokenizer(models.BPE(vocab={"a": 0, "<unk>": 1}, merges=[]))


def kept(tokenizer: Tokenizer) -> int:
    """Encode words of unknown letters, which have no ids; name the token of these letters; count the words that still
    have no ids."""
    for word in WORDS:
        tokenizer.encode(word)
    tokenizer.model.unk_token = "<unk>"
    return sum(not tokenizer.encode(word).ids for word in WORDS)


def test_no_word_is_kept() -> None:
    assert kept(new()) == len(WORDS)  # as they come
    assert kept(keeping_no_words(new())) == 0


def test_nor_by_a_tokenizer_of_transformers_or_from_before() -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=new())
    tokenizer("bb0")
    assert kept(keeping_no_words(tokenizer).backend_tokenizer) == 0


@pytest.mark.parametrize("model", [models.BPE(), models.Unigram()])
def test_both_kinds_with_a_cache_have_the_switch(model: models.Model) -> None:
    assert hasattr(Tokenizer(model).model, "_resize_cache")


def test_models_without_a_cache_stay_as_they_are() -> None:
    tokenizer = Tokenizer(models.WordPiece())
    assert keeping_no_words(tokenizer) is tokenizer
    assert keeping_no_words(None) is None
