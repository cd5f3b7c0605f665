"""The paper's predictor: a one-class SVM over the cached embeddings, retrained when they change (NIRVANA §5.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from shared.types import Vector

NU = 0.001
"""Share of the cached prompts that may fall outside: "we effectively overfit the model"."""
RETRAIN_AT = 0.05
"""Retrained when more than this share of the embeddings changed since the last fit."""
UPDATES = 500_000
"""SGD updates of one fit, about .1 s. scikit-learn's default tolerance stops after a handful of passes, and with so
small a ν the offset is then still so low that every vector, even the opposite of a cached one, counts as inside."""


class OneClassSvm:
    """scikit-learn's SGDOneClassSVM: linear as in the paper, or over a Nyström map of an RBF kernel."""

    name: ClassVar[str] = "svm"

    def __init__(self, nystroem: int = 0, seed: int = 0) -> None:
        """`nystroem` components of the kernel map; 0: linear."""
        self._components = nystroem
        self._seed = seed
        self._vectors: dict[str, Vector] = {}
        self._changed = 0
        self._score: Callable[[Vector], float] | None = None
        self.fits = 0

    def predict(self, vector: Vector) -> tuple[bool, float]:
        """Score: the decision function, ≥ 0 inside. Before the first fit every lookup is worth it."""
        if not self._vectors:
            return False, -1.0
        if self._score is None:
            return True, 0.0
        score = self._score(vector)
        return score >= 0, score

    def update(self, added: Mapping[str, Vector], removed: Sequence[str]) -> None:
        for entry_id in removed:
            self._changed += self._vectors.pop(entry_id, None) is not None
        self._changed += sum(entry_id not in self._vectors for entry_id in added)
        self._vectors.update(added)

    def refit(self) -> Callable[[], None] | None:
        if not self._vectors or self._changed <= RETRAIN_AT * len(self._vectors):
            return None
        vectors, self._changed = np.stack(list(self._vectors.values())), 0

        def fit() -> None:
            self._score = _fitted(vectors, self._components, self._seed)
            self.fits += 1

        return fit

    def __len__(self) -> int:
        return len(self._vectors)


def _fitted(vectors: Any, components: int, seed: int) -> Callable[[Vector], float]:
    from sklearn.kernel_approximation import Nystroem
    from sklearn.linear_model import SGDOneClassSVM

    mapped = None
    if components:
        mapped = Nystroem(n_components=min(components, len(vectors)), random_state=seed).fit(vectors)
    points = vectors if mapped is None else mapped.transform(vectors)
    passes = max(UPDATES // len(points), 1)
    svm = SGDOneClassSVM(nu=NU, tol=None, max_iter=passes, random_state=seed).fit(points)
    weights, offset = svm.coef_.ravel(), float(svm.offset_[0])

    def score(vector: Vector) -> float:
        # the decision function itself: scikit-learn's checks around it cost more than the product
        point = vector if mapped is None else mapped.transform(vector[None])[0]
        return float(point @ weights) - offset

    return score
