"""NIRVANA's match predictor in a replay: the one-class SVM that serves, fitted as the cache changes (NIRVANA §5.2)."""

from __future__ import annotations

from collections.abc import Callable

from services.match_predictor.svm import OneClassSvm
from shared.types import Vector


class Gate:
    """Says whether a lookup is worth it."""

    def __init__(self, vector_of: Callable[[int], Vector], refit_requests: int) -> None:
        """`refit_requests`: so many requests at least lie between two fits, each of which takes a tenth of a second."""
        self._svm = OneClassSvm()
        self._vector_of = vector_of
        self._every = refit_requests
        self._added: dict[str, int] = {}
        self._removed: list[str] = []

    def add(self, name: str, request: int) -> None:
        self._added[name] = request

    def remove(self, name: str) -> None:
        if self._added.pop(name, None) is None:
            self._removed.append(name)

    def opens(self, request: int) -> bool:
        if request % self._every == 0:
            self._svm.update({name: self._vector_of(one) for name, one in self._added.items()}, self._removed)
            self._added, self._removed = {}, []
            fit = self._svm.refit()
            if fit is not None:
                fit()
        hit, _ = self._svm.predict(self._vector_of(request))
        return hit
