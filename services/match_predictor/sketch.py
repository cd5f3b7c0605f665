"""A small copy of the cached embeddings: predicts a hit if the nearest one exceeds the K table's lowest similarity.

The paper's one-class SVM models the distribution of prompts, not the distance to the nearest one. On real prompts the
SVM's AUC is .60 to .69, the sketch's .978 to .999 (docs/adr/0002-match-predictor-sketch.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from usearch.index import Index

from shared.domain.types import Vector

SMALL = 512
"""Up to this many vectors, a float32 matrix is exact and faster than a graph."""


EXPANSION_ADD = 64
"""Half of the library's default: adds take 45 % of the time; the nearest of 20,000 clustered vectors stays the same."""


class Rows:
    """Unit vectors by id in one growing float32 matrix; removal moves the last row into the gap."""

    def __init__(self, dim: int) -> None:
        self._matrix: npt.NDArray[np.float32] = np.empty((16, dim), dtype=np.float32)
        self._ids: list[str] = []
        self._row: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, entry_id: str) -> bool:
        return entry_id in self._row

    def add(self, entry_id: str, vector: Vector) -> None:
        if len(self._ids) == len(self._matrix):
            self._matrix = np.concatenate([self._matrix, np.empty_like(self._matrix)])
        self._row[entry_id] = len(self._ids)
        self._matrix[len(self._ids)] = vector
        self._ids.append(entry_id)

    def remove(self, entry_id: str) -> None:
        row, last = self._row.pop(entry_id), self._ids.pop()
        if last != entry_id:
            self._matrix[row] = self._matrix[len(self._ids)]
            self._ids[row], self._row[last] = last, row

    def items(self) -> Iterable[tuple[str, Vector]]:
        return ((entry_id, self._matrix[row].copy()) for row, entry_id in enumerate(self._ids))

    def nearest(self, vector: Vector) -> float:
        return float((self._matrix[: len(self._ids)] @ vector).max())


class Graph:
    """The interface of Rows on a usearch index of int8 vectors: cosines are exact to about .01."""

    def __init__(self, dim: int) -> None:
        self._index = Index(ndim=dim, metric="cos", dtype="i8", expansion_add=EXPANSION_ADD)
        self._key: dict[str, int] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._key)

    def __contains__(self, entry_id: str) -> bool:
        return entry_id in self._key

    def add(self, entry_id: str, vector: Vector) -> None:
        self._index.add(self._next, vector)
        self._key[entry_id] = self._next  # keys are never reused: usearch refuses an existing key
        self._next += 1

    def remove(self, entry_id: str) -> None:
        self._index.remove(self._key.pop(entry_id))

    def nearest(self, vector: Vector) -> float:
        found = self._index.search(vector, 1)
        return 1.0 - float(found.distances[0]) if len(found) else -1.0


class Sketch:
    """Predicts a hit when the nearest embedding is above `threshold` − `margin`."""

    name: ClassVar[str] = "sketch"

    def __init__(self, threshold: Callable[[], float], margin: float) -> None:
        """`threshold()` returns the lowest similarity of the K table in force.

        `margin` allows for int8 rounding, and for a missed hit costing more than a needless lookup.
        """
        self._threshold = threshold
        self._margin = margin
        self._vectors: Rows | Graph | None = None

    def predict(self, vector: Vector) -> tuple[bool, float]:
        if not self._vectors:
            return False, -1.0
        score = self._vectors.nearest(vector)
        return score > self._threshold() - self._margin, score

    def update(self, added: Mapping[str, Vector], removed: Sequence[str]) -> None:
        for entry_id in (*removed, *added):
            if self._vectors is not None and entry_id in self._vectors:
                self._vectors.remove(entry_id)
        for entry_id, vector in added.items():
            if self._vectors is None:
                self._vectors = Rows(len(vector))
            self._vectors.add(entry_id, vector)
            if isinstance(self._vectors, Rows) and len(self._vectors) > SMALL:
                self._vectors = _as_graph(self._vectors, len(vector))

    def refit(self) -> Callable[[], None] | None:
        return None

    def __len__(self) -> int:
        return len(self._vectors) if self._vectors is not None else 0


def _as_graph(rows: Rows, dim: int) -> Graph:
    graph = Graph(dim)
    for entry_id, vector in rows.items():
        graph.add(entry_id, vector)
    return graph
