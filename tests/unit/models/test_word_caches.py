"""Tokenizers lose their cache of words: it would keep words of prompts until the process ends."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer, models

from shared.models.word_caches import keeping_no_words

SIZES: list[int] = []
CACHING = SimpleNamespace(_resize_cache=SIZES.append)


@pytest.mark.parametrize(
    "tokenizer",
    [SimpleNamespace(model=CACHING), SimpleNamespace(backend_tokenizer=SimpleNamespace(model=CACHING))],
    ids=["of tokenizers", "of transformers"],
)
def test_the_cache_has_no_room(tokenizer: SimpleNamespace) -> None:
    SIZES.clear()
    assert keeping_no_words(tokenizer) is tokenizer
    assert SIZES == [0]


@pytest.mark.parametrize("model", [models.BPE(), models.Unigram()])
def test_the_library_has_this_switch(model: models.Model) -> None:
    assert hasattr(Tokenizer(model).model, "_resize_cache")


def test_models_without_a_cache_stay_as_they_are() -> None:
    tokenizer = Tokenizer(models.WordPiece())
    assert keeping_no_words(tokenizer) is tokenizer
    assert keeping_no_words(None) is None
