"""Embeddings kept on disk per encoder and prompt: none is computed twice, and a run can be broken off."""

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
"""Prompts encoded in order of length, so that few are padded."""
BATCH = 32
"""Prompts between two writes: the most that a kill costs."""


def digest(text: str) -> bytes:
    """What a prompt is known by: 16 bytes."""
    return hashlib.blake2b(text.encode(), digest_size=DIGEST).digest()


class EmbeddingStore:
    """Two files that only grow, `prompts.bin` (digests) and `vectors.f32` (rows), in one folder per encoder.

    A row counts once both of its halves are there; whatever a kill left of one alone is cut off when opened.
    One process at a time: ConfigurationError for a second one.
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
            raise ConfigurationError(f"{folder}: another replay is writing these embeddings") from error
        self._prompts.seek(0)
        known = self._prompts.read()
        count = min(len(known) // DIGEST, self._vectors.seek(0, 2) // (4 * dim))
        self._prompts.truncate(count * DIGEST)
        self._vectors.truncate(count * 4 * dim)
        self._row = {known[at : at + DIGEST]: at // DIGEST for at in range(0, count * DIGEST, DIGEST)}

    def __len__(self) -> int:
        return len(self._row)

    def missing(self, texts: Iterable[str]) -> list[str]:
        """Those of them that are not here, each once, in order."""
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
        """Unit vectors, shape (texts, dim); KeyError for a text that is missing."""
        if not texts:
            return np.empty((0, self._dim), np.float32)
        kept = np.memmap(self._vectors.name, dtype="<f4", mode="r", shape=(len(self._row), self._dim))
        return np.asarray(kept[[self._row[digest(text)] for text in texts]], dtype=np.float32)

    def close(self) -> None:
        self._prompts.close()
        self._vectors.close()


def embed(store: EmbeddingStore, encoder: TextEncoder, texts: Iterable[str], advance: Callable[[int], None]) -> None:
    """Encodes what the store lacks, batch by batch."""
    missing = store.missing(texts)
    for start in range(0, len(missing), CHUNK):
        chunk = sorted(missing[start : start + CHUNK], key=len)
        for at in range(0, len(chunk), BATCH):
            batch = chunk[at : at + BATCH]
            store.add(batch, encoder.texts(batch))
            advance(len(batch))
