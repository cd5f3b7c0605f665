"""Store embeddings on disk by encoder and prompt, so an interrupted run computes none twice."""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from services.replay.traces.encoders import Rows, TextEncoder
from shared.domain.errors import ConfigurationError

DIGEST = 16
CHUNK = 2048
"""Prompts that are sorted by length together, so that batches need little padding."""
BATCH = 32
"""Prompts between two writes; a killed process loses at most these."""


def digest(text: str) -> bytes:
    """Return the 16-byte key of a prompt."""
    return hashlib.blake2b(text.encode(), digest_size=DIGEST).digest()


class EmbeddingStore:
    """Two append-only files in one folder per encoder: `prompts.bin` (digests) and `vectors.f32` (rows).

    A row counts when both files have it. Opening removes the incomplete rows of a killed process. Only one process may
    open a folder; raises ConfigurationError for a second one.
    """

    def __init__(self, folder: Path, dim: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._dim = dim
        self._prompts = (folder / "prompts.bin").open("a+b")
        self._vectors = (folder / "vectors.f32").open("a+b")
        try:
            fcntl.flock(self._prompts, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise ConfigurationError(
                f"{folder}: another replay is writing these embeddings; wait for it, or give --embeddings"
            ) from error
        self._prompts.seek(0)
        known = self._prompts.read()
        count = min(len(known) // DIGEST, self._vectors.seek(0, 2) // (4 * dim))
        self._prompts.truncate(count * DIGEST)
        self._vectors.truncate(count * 4 * dim)
        self._row = {known[at : at + DIGEST]: at // DIGEST for at in range(0, count * DIGEST, DIGEST)}

    def __len__(self) -> int:
        return len(self._row)

    def missing(self, texts: Iterable[str]) -> list[str]:
        """Return the texts without an embedding, each once, in order."""
        return [text for text in dict.fromkeys(texts) if digest(text) not in self._row]

    def add(self, texts: Sequence[str], rows: Rows) -> None:
        self._vectors.write(np.ascontiguousarray(rows, dtype="<f4").tobytes())
        self._vectors.flush()
        for text in texts:
            name = digest(text)
            self._row[name] = len(self._row)
            self._prompts.write(name)
        self._prompts.flush()

    def rows(self, texts: Sequence[str]) -> Rows:
        """Return unit vectors, shape (texts, dim); raises KeyError for a text without an embedding."""
        if not texts:
            return np.empty((0, self._dim), np.float32)
        kept = np.memmap(self._vectors.name, dtype="<f4", mode="r", shape=(len(self._row), self._dim))
        return np.asarray(kept[[self._row[digest(text)] for text in texts]], dtype=np.float32)

    def close(self) -> None:
        self._prompts.close()
        self._vectors.close()


def embed(store: EmbeddingStore, encoder: TextEncoder, texts: Iterable[str], advance: Callable[[int], None]) -> None:
    """Encode the texts that the store lacks, batch by batch."""
    missing = store.missing(texts)
    for start in range(0, len(missing), CHUNK):
        chunk = sorted(missing[start : start + CHUNK], key=len)
        for at in range(0, len(chunk), BATCH):
            batch = chunk[at : at + BATCH]
            store.add(batch, encoder.texts(batch))
            advance(len(batch))
