"""A small Llama that marks the borders of both spans in one pass (shared/models/borders.py)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from services.text_extractor import Extraction
from shared.domain.errors import ModelError
from shared.models.borders import PAD, marked, padded, read_tokenizer, reading, special
from shared.models.devices import single_threaded

TRAINED_TOKENS = 77
"""Longest prompt of its training (services/trainer/extraction/training.py)."""
LIKELY = 0.5
"""Least probability of every border of a sure answer: each is likelier than all other places together."""


class BorderLlama:
    """Loaded weights of transformers' LlamaForTokenClassification; call from the thread that loaded them."""

    seats = 32

    def __init__(self, folder: Path, name: str, tokens: int) -> None:
        """Load the weights. Raise ModelError if the folder lacks them. tokens: most of a prompt that are read (§5)."""
        import torch
        from transformers import LlamaForTokenClassification

        single_threaded()
        self.id, self._torch, self._tokens = name, torch, min(tokens, TRAINED_TOKENS)
        try:
            self._tokenizer = read_tokenizer(folder)
            self._model = LlamaForTokenClassification.from_pretrained(
                folder, dtype=torch.float32, use_safetensors=True, local_files_only=True
            )
        except Exception as error:
            raise ModelError(f"extractor {folder}: must hold a Llama that marks borders ({error})") from error
        self._model.eval().requires_grad_(False)
        self._pad = special(self._tokenizer, PAD)

    def extract(self, prompts: Sequence[str]) -> list[Extraction]:
        readings = [reading(self._tokenizer, prompt, self._tokens) for prompt in prompts]
        ids, mask = (self._torch.from_numpy(one) for one in padded(readings, self._pad))
        with self._torch.inference_mode():
            scores = self._model(input_ids=ids, attention_mask=mask).logits.numpy()
        found = []
        for row, one in enumerate(readings):
            thing, place, least = marked(one, scores[row, one.first : len(one.ids)])
            found.append(Extraction(thing, place, thing is not None and least >= LIKELY))
        return found
