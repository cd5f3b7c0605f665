"""NIRVANA's match predictor in a replay: the one-class SVM that serves, fitted as the cache changes (NIRVANA §5.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from services.match_predictor.svm import OneClassSvm
from shared.types import Vector


class Gate:
    """Says whether a lookup is worth it. As when serving there is one SVM for the entries that fit each other, which
    goes with the last of them; it hears of those that leave and then of those that come, and says after either whether
    so many are others that it wants to be fitted again."""

    def __init__(self, vector_of: Callable[[int], Vector], refit_requests: int) -> None:
        """`refit_requests`: so many requests at least lie between two fits; 0: no such limit, as when serving."""
        self._svms: dict[int, OneClassSvm] = {}
        """By group: requests that fit each other."""
        self._vector_of = vector_of
        self._every = refit_requests
        self._asked = 0
        self._fit_from = 0
        """So many requests must have asked before the next fit."""
        self.fits = 0

    def left(self, entries: Iterable[tuple[int, str]]) -> None:
        """(group, name) of those that made room for a request."""
        for group, name in entries:
            self._svms[group].update({}, (name,))
            if not len(self._svms[group]):
                del self._svms[group]
        self._refit()

    def came(self, group: int, name: str, request: int) -> None:
        self._svms.setdefault(group, OneClassSvm()).update({name: self._vector_of(request)}, ())
        self._refit()

    def opens(self, group: int, request: int) -> bool:
        self._asked += 1
        svm = self._svms.get(group)
        return svm is not None and svm.predict(self._vector_of(request))[0]

    def _refit(self) -> None:
        if self._asked < self._fit_from:
            return
        for svm in self._svms.values():
            fit = svm.refit()
            if fit is not None:
                fit()
                self.fits += 1
                self._fit_from = self._asked + self._every
