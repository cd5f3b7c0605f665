"""Outputs of frozen encoders on disk: each image and each caption is encoded once, then read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from services.trainer.finetuning.batches import Batch, Row
from services.trainer.finetuning.model.encoders import CheckpointEncoders
from services.trainer.finetuning.stepper import Conditions
from shared.domain.types import Size


class KeptEncoders:
    """Encoders that look on disk first; one file for each image and size, one for each caption.

    Ranks share the folder: files are written aside and renamed, so a reader never sees a part of one. The folder
    belongs to one checkpoint and one data set.
    """

    def __init__(
        self, encoders: CheckpointEncoders, folder: Path, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> None:
        """Read and write files in `folder`; `dtype` is that of prompt embeddings, whichever they were written in."""
        self._encoders, self._folder, self._device, self._dtype = encoders, folder, device, dtype

    def encode(self, batch: Batch) -> tuple[torch.Tensor, Conditions]:
        """Return what the encoders return, and keep it; see stepper.Encoders."""
        return self._latents(batch), self._prompts(batch.rows) | self._encoders.sizes(batch.rows, batch.size)

    def _latents(self, batch: Batch) -> torch.Tensor:
        paths = [self._image(row, batch.size) for row in batch.rows]
        found = [_read(path) for path in paths]
        if missing := [place for place, kept in enumerate(found) if kept is None]:
            pixels = torch.stack([batch.read(batch.rows[place], batch.size) for place in missing])
            for place, latents in zip(missing, self._encoders.latents(pixels), strict=True):
                found[place] = {"latents": latents}
                _write(paths[place], {"latents": latents})
        return torch.stack([kept["latents"].to(self._device) for kept in found if kept is not None])

    def _prompts(self, rows: Sequence[Row]) -> dict[str, torch.Tensor]:
        found = {row.caption: _read(self._text(row.caption)) for row in rows}
        if missing := [caption for caption, kept in found.items() if kept is None]:
            made = self._encoders.prompts(missing)
            for place, caption in enumerate(missing):
                found[caption] = one = {name: values[place] for name, values in made.items()}
                _write(self._text(caption), one)
        each = [kept for row in rows if (kept := found[row.caption]) is not None]
        return {name: torch.stack([kept[name].to(self._device, self._dtype) for kept in each]) for name in each[0]}

    def _image(self, row: Row, size: Size) -> Path:
        return self._folder / "latents" / f"{row.index % 1000:03}" / f"{row.index}-{size}.safetensors"

    def _text(self, caption: str) -> Path:
        name = hashlib.sha256(caption.encode()).hexdigest()
        return self._folder / "prompts" / name[:2] / f"{name[2:34]}.safetensors"


def _read(path: Path) -> dict[str, torch.Tensor] | None:
    """Return the tensors of a file; None if it is missing or broken: it is made again."""
    try:
        return load_file(path)
    except (OSError, SafetensorError):
        return None


def _write(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{uuid4().hex}.partial")  # processes of two machines may have one number
    save_file({name: value.cpu().contiguous() for name, value in tensors.items()}, partial)
    os.replace(partial, path)
