"""A CLIP text/image pair on one CPU thread: turns texts and images into unit vectors (NIRVANA §5.1)."""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError
from safetensors import SafetensorError

from shared.domain.errors import InvalidRequestError, ModelError
from shared.models.folders import transformers_folder
from shared.models.k_table import EncoderId
from shared.models.vocabulary import read_known_words, unknown_share, unknown_words
from shared.models.word_caches import keeping_no_words

HASHED_SUFFIXES = (".safetensors", ".json", ".txt")
NOT_HASHED = ("card.json", "known_words.json")
MAX_PIXELS = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Embedded:
    """One unit vector, float32 little endian, with notes about its text."""

    vector: bytes
    unknown_words: tuple[str, ...] = ()
    truncated: bool = False
    unknown_share: float = 0.0
    """Share of `unknown_words` among the words that name something."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A decoded image, scaled and normalised for the image tower: (1, 3, side, side). Compared by content hash."""

    sha256: bytes
    pixels: Any = field(compare=False, repr=False)


def encoder_folder(name: str, *, fetch: bool = True) -> Path:
    """Return the folder with the files of the setting `encoder`; see `transformers_folder`."""
    return transformers_folder(name, "encoder", fetch=fetch)


def encoder_id(folder: Path) -> EncoderId:
    """Return the identity of the encoder in this folder.

    The hash is 16 hex digits over weights, configuration and tokenizer: vectors of equal hashes can be compared.
    """
    total, weights = hashlib.sha256(), []
    files = [path for path in sorted(folder.iterdir()) if path.suffix in HASHED_SUFFIXES]
    if not any(path.suffix == ".safetensors" for path in files):
        raise ModelError(
            f"encoder {folder}: needs weights in a .safetensors file (found none); convert or download them"
        )
    for path in files:
        if path.name not in NOT_HASHED:
            with open(path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256")
            total.update(f"{path.name}\0".encode() + digest.digest())
            if path.suffix == ".safetensors":
                weights.append(digest.hexdigest())
    return EncoderId(total.hexdigest()[:16], weights[0] if len(weights) == 1 else "")


def encoder_hash(folder: Path) -> str:
    """Return only the hash of `encoder_id`."""
    return encoder_id(folder).hash


class Encoder:
    """Loaded weights of the encoder; call from one thread at a time."""

    def __init__(self, folder: Path) -> None:
        """Load the weights. Raise ModelError if the folder has no CLIP pair in transformers' layout."""
        import torch
        from transformers import AutoTokenizer, CLIPImageProcessorPil, CLIPModel
        from transformers.utils import logging

        logging.disable_progress_bar()  # no progress bars in a service's log
        self.id = encoder_id(folder)
        self.hash = self.id.hash
        self._torch = torch
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # transformers' own warnings
                local: dict[str, Any] = {"local_files_only": True}
                self._model = CLIPModel.from_pretrained(folder, dtype=torch.float32, use_safetensors=True, **local)
                self._tokenizer = keeping_no_words(AutoTokenizer.from_pretrained(folder, **local))
                self._processor = CLIPImageProcessorPil.from_pretrained(folder, **local)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise ModelError(f"encoder {folder}: must be a CLIP pair in transformers' layout ({error})") from error
        self._model.eval().requires_grad_(False)
        self._max_tokens = int(self._model.config.text_config.max_position_embeddings)
        self._known = read_known_words(folder)
        self.dim = int(self._model.config.projection_dim)

    def texts(self, texts: Sequence[str]) -> list[Embedded]:
        """Return one unit vector per text, shape (dim,); truncate and mark texts beyond the encoder's limit."""
        with self._torch.inference_mode():
            tokens = self._tokenizer(list(texts), padding=True, return_tensors="pt", verbose=False)
            lengths = tokens["attention_mask"].sum(dim=1).tolist()
            if max(lengths) > self._max_tokens:  # tokenize again only if needed
                cut: dict[str, Any] = {"truncation": True, "max_length": self._max_tokens}
                tokens = self._tokenizer(list(texts), padding=True, return_tensors="pt", **cut)
            rows = _unit(self._model.get_text_features(**tokens).pooler_output.numpy())
        unknown = [unknown_words(text, self._knows) for text in texts]
        return [
            Embedded(row.tobytes(), words, length > self._max_tokens, unknown_share(text, words))
            for row, text, words, length in zip(rows, texts, unknown, lengths, strict=True)
        ]

    def images(self, images: Sequence[bytes]) -> list[Embedded]:
        """Return one unit vector per PNG or JPEG."""
        return self.seen([self.look(data) for data in images])

    def look(self, image: bytes) -> Seen:
        """Decode a PNG or JPEG into the image tower's input; raise InvalidRequestError for other data.

        Any thread may call this.
        """
        pixels = self._processor(images=[decoded(image)], return_tensors="pt")["pixel_values"]
        return Seen(hashlib.sha256(image).digest(), pixels)

    def seen(self, images: Sequence[Seen]) -> list[Embedded]:
        """Return one unit vector per decoded image."""
        with self._torch.inference_mode():
            pixels = self._torch.cat([image.pixels for image in images])
            rows = _unit(self._model.get_image_features(pixel_values=pixels).pooler_output.numpy())
        return [Embedded(row.tobytes()) for row in rows]

    def _knows(self, word: str) -> bool:
        if self._known is not None:
            return word in self._known
        # without a list, only words that the tokenizer cannot spell count as unknown (byte-level tokenizers spell any
        # word)
        pieces = self._tokenizer.tokenize(word)
        return bool(pieces) and self._tokenizer.unk_token not in pieces


def decoded(data: bytes) -> Image.Image:
    """Decode a PNG or JPEG to RGB. Raise InvalidRequestError for other formats and for more than MAX_PIXELS pixels."""
    try:
        picture = Image.open(io.BytesIO(data), formats=("PNG", "JPEG"))
        if picture.width * picture.height > MAX_PIXELS:
            raise InvalidRequestError(
                "images", f"must have at most {MAX_PIXELS} pixels", f"{picture.width}x{picture.height}"
            )
        return picture.convert("RGB")
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InvalidRequestError("images", f"must be a PNG or JPEG file ({error})") from error


def _unit(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the rows scaled to length one, float32 little endian."""
    wide = rows.astype(np.float64)
    return np.ascontiguousarray(wide / np.linalg.norm(wide, axis=1, keepdims=True), dtype="<f4")
