"""CLIPSeg (Lüddecke & Ecker 2022, arXiv 2112.10003): a decoder on CLIP's towers; also the bundled segmenter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from transformers import CLIPSegForImageSegmentation, CLIPSegProcessor

from services.segmenter.models import Shares
from shared.models.word_caches import keeping_no_words
from shared.runtime.animated_png import Frames

BATCH = 16
"""Frames that are encoded at once."""


class ClipSeg:
    """A CLIPSeg in transformers' layout. Each frame is encoded once for all phrases."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self._device = device
        self._processor = CLIPSegProcessor.from_pretrained(folder, local_files_only=True)
        keeping_no_words(self._processor.tokenizer)
        model = CLIPSegForImageSegmentation.from_pretrained(
            folder, dtype=torch.float32, use_safetensors=True, local_files_only=True
        )
        self._model = model.to(device).eval().requires_grad_(False)
        self._max_tokens = int(model.config.text_config.max_position_embeddings)

    @torch.inference_mode()
    def segment(self, frames: Frames, phrases: Sequence[str]) -> Shares:
        text = self._texts(phrases)
        size = frames.shape[1:3]
        found = np.empty((len(phrases), len(frames), *size), np.float32)
        for start in range(0, len(frames), BATCH):
            layers = self._layers(frames[start : start + BATCH])
            for number, phrase in enumerate(text):
                logits = self._model.decoder(layers, phrase.expand(len(layers[0]), -1)).logits
                if logits.shape[-2:] != size:
                    logits = F.interpolate(logits[:, None], size, mode="bilinear")[:, 0]
                found[number, start : start + BATCH] = logits.sigmoid().cpu().numpy()
        return found

    def _texts(self, phrases: Sequence[str]) -> torch.Tensor:
        tokens = self._processor.tokenizer(
            list(phrases), padding=True, truncation=True, max_length=self._max_tokens, return_tensors="pt"
        )
        features: torch.Tensor = self._model.clip.get_text_features(**tokens.to(self._device)).pooler_output
        return features

    def _layers(self, frames: Frames) -> list[torch.Tensor]:
        inputs = self._processor.image_processor(images=list(frames), return_tensors="pt")
        pixels = inputs["pixel_values"].to(self._device)
        hidden = self._model.clip.vision_model(pixel_values=pixels, output_hidden_states=True).hidden_states
        return [hidden[layer + 1] for layer in self._model.extract_layers]
