"""The paper's predictor: a one-class SVM over the cached embeddings, retrained when they change (NIRVANA §5.2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from shared.domain.types import Vector

NU = 0.001
"""Share of the cached prompts that may be outside: "we effectively overfit the model"."""
RETRAIN_AT = 0.05
"""Share of embeddings changed since the last fit above which the SVM is retrained."""
UPDATES = 500_000
"""SGD updates of a fit from scratch, about .1 s.

scikit-learn's default tolerance stops after a handful of passes. With so small a ν, the offset is then still so low
that every vector is inside, even the opposite of a cached one.
"""
GOING_ON = 50_000
"""SGD updates of a refit, counted over all entries; they determine the number of passes over each entry.

A refit starts from the previous weights. Its learning rate is twice the final rate of a fit from scratch, so it gets as
far as with twice as many updates at that rate.
"""
OUTERMOST = 0.1
"""Share of the entries, those that score lowest, that a refit passes over (shrinking; Joachims 1999).

An entry well inside moves neither weights nor offset, so leaving it out changes little but the time of the fit. If more
entries are outside, the refit passes over all: the weights then turn so far that others may move outside.
"""
AT_LEAST = 32
"""Minimum number of entries that a refit passes over. When a refit passed over 5 of 50, other entries moved outside,
and recall was .62 in place of .82."""

Weights = tuple[Any, Any]
"""Coefficients and offset of the linear SVM."""


class OneClassSvm:
    """scikit-learn's SGDOneClassSVM, linear as in the paper."""

    name: ClassVar[str] = "svm"

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._vectors: dict[str, Vector] = {}
        self._changed = 0
        self._score: Callable[[Vector], float] | None = None
        self._weights: Weights | None = None
        self.fits = 0

    def predict(self, vector: Vector) -> tuple[bool, float]:
        """Return (hit, decision function), ≥ 0 inside. Before the first fit, every request is predicted as a hit."""
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
        vectors = np.concatenate(list(self._vectors.values())).reshape(len(self), -1)  # np.stack takes twice as long
        # after more changes than entries, hardly any entry is left for which the weights were fitted
        before = self._weights if self._changed <= len(vectors) else None
        self._changed = 0

        def fit() -> None:
            self._weights = _fitted(vectors, before, self._seed + self.fits)
            self._score = _decision(*self._weights)
            self.fits += 1

        return fit

    def __len__(self) -> int:
        return len(self._vectors)


def _fitted(points: Any, before: Weights | None, seed: int) -> Weights:
    """Fit from scratch, or from the previous weights: SGD makes retraining fast (NIRVANA §5.2)."""
    from sklearn.linear_model import SGDOneClassSVM

    svm = SGDOneClassSVM(nu=NU, tol=None, random_state=seed)
    if before is None:
        svm.set_params(max_iter=max(UPDATES // len(points), 1)).fit(points)
    else:
        coefficients, offset = before
        near = _outermost(points, *before)
        svm.set_params(
            nu=NU * len(points) / len(near),  # ν refers to all entries, including those left out
            max_iter=max(GOING_ON // len(points), 1),
            learning_rate="constant",
            eta0=2 / (NU * UPDATES),
        )
        # a copy: the fit writes to it, and predictions use the previous weights until the fit ends
        svm.fit(near, coef_init=coefficients.copy(), offset_init=offset)
    return svm.coef_, svm.offset_


def _outermost(points: Any, coefficients: Any, offset: Any) -> Any:
    """Return the rows that score lowest, shape (rows, dim); all rows if more are outside."""
    scores = points @ coefficients.ravel() - offset
    count = max(math.ceil(OUTERMOST * len(points)), AT_LEAST)
    few = count < len(points) and int((scores < 0).sum()) <= count
    return points[np.argpartition(scores, count - 1)[:count]] if few else points


def _decision(coefficients: Any, offset: Any) -> Callable[[Vector], float]:
    """Return the decision function without scikit-learn's checks, which cost more than the product."""
    weights, least = coefficients.ravel(), float(offset[0])

    def score(vector: Vector) -> float:
        return float(vector @ weights) - least

    return score
