"""The hash that says two checkpoints draw the same: over weights, tokenizer and scheduler, not over a name."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from pathlib import Path

from shared.errors import ModelError

HASHED_SUFFIXES = (".safetensors", ".json", ".txt", ".model")
NOT_HASHED = ("card.json", "README.md")
"""Files that do not change what is drawn."""


def weights_hash(folder: Path) -> str:
    """16 hex digits of a sha256 over a checkpoint in diffusers' layout.

    Covers the contents of every safetensors file (denoiser, VAE, text encoders), the tokenizer, the scheduler's and
    the components' configurations (design §2, Compatibility). Files at the top other than model_index.json (cards,
    tables, plots) do not count. Cached by every file's path, mtime and size.
    Raises ModelError when there is no safetensors file.
    """
    files = tuple(_stamp(folder, path) for path in sorted(_parts(folder)))
    if not any(name.endswith(".safetensors") for name, _, _ in files):
        raise ModelError(f"no weights in {folder}: no .safetensors file")
    return _hash(str(folder), files)


def _parts(folder: Path) -> list[Path]:
    inside = [path for path in folder.rglob("*") if path.suffix in HASHED_SUFFIXES and path.name not in NOT_HASHED]
    return [path for path in inside if path.parent != folder or path.name == "model_index.json"]


def _stamp(folder: Path, path: Path) -> tuple[str, int, int]:
    status = os.stat(path)
    return path.relative_to(folder).as_posix(), status.st_mtime_ns, status.st_size


@lru_cache(maxsize=64)
def _hash(folder: str, files: tuple[tuple[str, int, int], ...]) -> str:
    total = hashlib.sha256()
    for name, _, _ in files:
        with open(os.path.join(folder, name), "rb") as file:
            total.update(f"{name}\0".encode() + hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()[:16]
