"""Tokenizer of the captions (byte-level BPE in CLIP's own format) and the filler words that training adds as noise."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import CLIPTokenizer

from shared.models.scenes import WORDINGS, caption, known_words, random_scene

LENGTH = 32
"""Tokens per prompt, start and end included; longer prompts are cut."""
VOCABULARY = 1024

FILLERS = (
    "beautiful", "cute", "detailed", "highly", "lovely", "pretty", "picture", "image", "photo", "with", "and", "very",
    "happy", "sad", "old", "new", "bright", "soft", "nice", "please", "draw", "me", "some", "really", "amazing",
    "masterpiece", "trending", "art", "sharp", "focus", "style", "scene", "there", "is", "are", "funny", "quiet",
)  # fmt: skip
"""Filler words without meaning for the scenes; captions contain some, so that an unknown word does little harm."""


def train_tokenizer(folder: Path, seed: int = 0) -> CLIPTokenizer:
    """Learn the merges from captions of random scenes and save the tokenizer to `folder`."""
    rng = random.Random(seed)
    captions = [caption(random_scene(rng), rng.randrange(WORDINGS)) for _ in range(20_000)]
    captions += [" ".join(FILLERS)] * 20
    learned = Tokenizer(models.BPE(continuing_subword_prefix="", end_of_word_suffix="</w>", fuse_unk=False))
    learned.normalizer = normalizers.Lowercase()
    learned.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    learned.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    learned.train_from_iterator(
        captions,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY - 2,
            initial_alphabet=alphabet,
            end_of_word_suffix="</w>",
            show_progress=False,
            min_frequency=1,
        ),
    )
    description: dict[str, Any] = json.loads(learned.to_str())
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in description["model"]["merges"]]
    pieces = [*alphabet, *(piece + "</w>" for piece in alphabet), *("".join(merge) for merge in merges)]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    for special in ("<|startoftext|>", "<|endoftext|>"):
        vocabulary[special] = len(vocabulary)
    tokenizer = CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=LENGTH)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    return tokenizer


def with_words(tokenizer: CLIPTokenizer, words: Iterable[str]) -> CLIPTokenizer:
    """Return a tokenizer that reads each of `words` as one token; all other words keep their tokens.

    The new merges are the last, so they join only what was left in pieces."""
    learned = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    vocabulary: dict[str, int] = dict(tokenizer.get_vocab())
    merges = [tuple(one.split(" ")) if isinstance(one, str) else tuple(one) for one in learned["merges"]]
    for word in words:
        first, *rest = CLIPTokenizer(vocab=vocabulary, merges=merges).tokenize(word)
        for piece in rest:
            merges.append((first, piece))
            first += piece
            vocabulary.setdefault(first, len(vocabulary))
    return CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=LENGTH)


class Words:
    """Tokenizer of captions with a cache of its results."""

    def __init__(self, tokenizer: CLIPTokenizer) -> None:
        self.tokenizer = tokenizer
        self.ids = lru_cache(maxsize=200_000)(self._ids)
        self.size = len(tokenizer)
        self.end = int(tokenizer.eos_token_id)
        self.start = int(tokenizer.bos_token_id)

    def batch(self, texts: Sequence[str]) -> torch.Tensor:
        """Return the texts' tokens (count, length), cut to the longest text; a causal tower reads nothing behind it."""
        ids = torch.tensor([self.ids(text) for text in texts])
        return ids[:, : int((ids != self.end).sum(1).max()) + 1]

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, padding="max_length", truncation=True, max_length=LENGTH).input_ids)


def sprinkled(text: str, rng: random.Random) -> str:
    """Return the caption with one to three filler words at random places."""
    words = text.split(" ")
    for _ in range(rng.randint(1, 3)):
        known = rng.random() < 0.5
        word = rng.choice(FILLERS) if known else "".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 8)))
        words.insert(rng.randint(0, len(words)), word)
    return " ".join(words)


def write_known_words(path: Path) -> None:
    """Save the words that training gave a meaning, so that a prompt's other words can be reported."""
    path.write_text(json.dumps({"words": known_words(), "ignored": sorted(FILLERS)}, indent=1) + "\n")
