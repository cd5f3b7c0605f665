"""NIRVANA's match predictor in a replay: the one-class SVM that serves, fitted as the cache changes (NIRVANA §5.2)."""

from __future__ import annotations

from collections.abc import Callable

from services.match_predictor.svm import OneClassSvm
from shared.types import Vector


class Gate:
    """Says whether a lookup is worth it. As when serving, entries that come and go are heard of at once, and the SVM
    itself says when so many of them are others that it wants to be fitted again."""

    def __init__(self, vector_of: Callable[[int], Vector], refit_requests: int) -> None:
        """`refit_requests`: so many requests at least lie between two fits; 0: no such limit, as when serving."""
        self._svm = OneClassSvm()
        self._vector_of = vector_of
        self._every = refit_requests
        self._asked = 0
        self._fit_from = 0
        """So many requests must have asked before the next fit."""

    @property
    def fits(self) -> int:
        return self._svm.fits

    def add(self, name: str, request: int) -> None:
        self._svm.update({name: self._vector_of(request)}, ())

    def remove(self, name: str) -> None:
        self._svm.update({}, (name,))

    def refit(self) -> None:
        """After entries came or went."""
        fit = self._svm.refit() if self._asked >= self._fit_from else None
        if fit is not None:
            fit()
            self._fit_from = self._asked + self._every

    def opens(self, request: int) -> bool:
        self._asked += 1
        hit, _ = self._svm.predict(self._vector_of(request))
        return hit
