"""The paper's predictor: a one-class SVM over the cached embeddings, retrained when they change (NIRVANA §5.2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from shared.domain.types import Vector

NU = 0.001
"""Share of the cached prompts that may fall outside: "we effectively overfit the model"."""
RETRAIN_AT = 0.05
"""Retrained when more than this share of the embeddings changed since the last fit."""
UPDATES = 500_000
"""SGD updates of a fit from nothing, about .1 s. scikit-learn's default tolerance stops after a handful of passes, and
with so small a ν the offset is then still so low that every vector, even the opposite of a cached one, is inside."""
GOING_ON = 50_000
"""A later fit goes on from the last one's weights and passes over each entry as often as so many updates over all of
them would, at twice the learning rate that UPDATES end with: it gets as far as with twice as many at that rate."""
OUTERMOST = 0.1
"""It passes over this share of the entries only, those that score lowest: one well inside moves neither weights nor
offset, so that leaving it out changes little but how long a fit takes (shrinking; Joachims 1999). Over all of them
where more are outside, since the weights then turn so far that others may come to lie there …"""
AT_LEAST = 32
"""… and never over fewer: with 5 of 50 others came to lie outside, recall .62 for .82."""

Weights = tuple[Any, Any]
"""Of the linear SVM: coefficients, offset."""


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
        vectors = np.concatenate(list(self._vectors.values())).reshape(len(self), -1)  # np.stack takes twice as long
        # after more changes than there are entries, hardly any is left of those that the weights were made for
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
    """From nothing, or from the weights of before: so SGD makes retraining fast (NIRVANA §5.2)."""
    from sklearn.linear_model import SGDOneClassSVM

    svm = SGDOneClassSVM(nu=NU, tol=None, random_state=seed)
    if before is None:
        svm.set_params(max_iter=max(UPDATES // len(points), 1)).fit(points)
    else:
        coefficients, offset = before
        near = _outermost(points, *before)
        svm.set_params(
            nu=NU * len(points) / len(near),  # of all the entries, those that are left out among them
            max_iter=max(GOING_ON // len(points), 1),
            learning_rate="constant",
            eta0=2 / (NU * UPDATES),
        )
        # a copy: the fit writes to it, and until it ends the weights of before say what is inside
        svm.fit(near, coef_init=coefficients.copy(), offset_init=offset)
    return svm.coef_, svm.offset_


def _outermost(points: Any, coefficients: Any, offset: Any) -> Any:
    """The rows that score lowest, shape (rows, dim); all where more are outside."""
    scores = points @ coefficients.ravel() - offset
    count = max(math.ceil(OUTERMOST * len(points)), AT_LEAST)
    few = count < len(points) and int((scores < 0).sum()) <= count
    return points[np.argpartition(scores, count - 1)[:count]] if few else points


def _decision(coefficients: Any, offset: Any) -> Callable[[Vector], float]:
    """The decision function itself: scikit-learn's checks around it cost more than the product."""
    weights, least = coefficients.ravel(), float(offset[0])

    def score(vector: Vector) -> float:
        return float(vector @ weights) - least

    return score
