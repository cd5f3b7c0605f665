"""Tokenizers that keep no words of users' prompts in memory."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def keeping_no_words(tokenizer: T) -> T:
    """Return this tokenizer, of transformers or tokenizers, without its cache of words.

    Byte-pair and unigram models keep the first ten thousand words of all texts until the process ends, where no erasure
    reaches them. Without them a prompt takes as long (0.2 ms).
    """
    model: Any = getattr(getattr(tokenizer, "backend_tokenizer", tokenizer), "model", None)
    if hasattr(model, "_resize_cache"):
        model._clear_cache()
        model._resize_cache(0)
    return tokenizer
