"""Hash that identifies checkpoints with equal images: over weights, tokenizer and scheduler, not over a name."""

from __future__ import annotations

import hashlib
import os
import re
from functools import lru_cache
from pathlib import Path

from shared.domain.errors import ModelError
from shared.models.checkpoint import INDEX, components

HASHED_SUFFIXES = (".safetensors", ".json", ".txt", ".model")
NOT_HASHED = ("card.json", "README.md")
"""Files that do not change the images."""


def weights_hash(folder: Path) -> str:
    """Return 16 hex digits of a sha256 over a checkpoint in diffusers' layout.

    The hash covers every safetensors file that is loaded (denoiser, VAE, every text encoder), the tokenizers, and the
    configurations of scheduler and components (docs/architecture.md, Equality). Top-level files other than
    model_index.json (cards, tables, plots), variants and folders without a component do not count. The result is cached
    by every file's path, mtime and size. Raise ModelError if there is no safetensors file.
    """
    files = tuple(_stamp(folder, path) for path in sorted(hashed_files(folder)))
    if not any(name.endswith(".safetensors") for name, _, _ in files):
        raise ModelError(f"no weights in {folder}: no .safetensors file")
    return _hash(str(folder), files)


def hashed_files(folder: Path) -> list[Path]:
    """Return the files that loading reads, in no order: the components of model_index.json (all folders if it names
    none), no variants."""
    inside = [path for path in folder.rglob("*") if path.suffix in HASHED_SUFFIXES and path.name not in NOT_HASHED]
    named = set(components(folder))
    return [path for path in inside if _is_read(path.relative_to(folder), named)]


def _is_read(path: Path, named: set[str]) -> bool:
    if len(path.parts) == 1:
        return path.name == INDEX
    variant = path.suffix == ".safetensors" and "." in path.name.removesuffix(".safetensors")
    return not variant and (not named or path.parts[0] in named)


def _stamp(folder: Path, path: Path) -> tuple[str, int, int]:
    status = os.stat(path)
    return path.relative_to(folder).as_posix(), status.st_mtime_ns, status.st_size


@lru_cache(maxsize=64)
def _hash(folder: str, files: tuple[tuple[str, int, int], ...]) -> str:
    total = hashlib.sha256()
    for name, _, _ in files:
        total.update(f"{name}\0".encode() + _digest(Path(folder, name)))
    return total.hexdigest()[:16]


def _digest(path: Path) -> bytes:
    """Return the sha256 of a file. Large blobs of the hub's cache are named by their hash, so they are not read."""
    blob = path.resolve()
    if blob.parent.name == "blobs" and re.fullmatch(r"[0-9a-f]{64}", blob.name):
        return bytes.fromhex(blob.name)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
