"""A match predictor in a replay: the one that serves, fitted as the cache changes (NIRVANA §5.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from services.match_predictor import MatchPredictor
from services.match_predictor.sketch import Sketch
from services.match_predictor.svm import OneClassSvm
from services.replay.policy import PolicySettings
from shared.domain.types import Vector
from shared.models.k_table import KTable
from shared.runtime.settings import Settings

SKETCH_MARGIN: float = Settings.model_fields["sketch_margin"].default


class Gate:
    """Says whether a lookup is worth it. As when serving there is one predictor for the entries that fit each other,
    which goes with the last of them; it receives those that leave and then those that come, and says after either
    whether so many are others that it wants to be fitted again."""

    def __init__(
        self, vector_of: Callable[[int], Vector], new: Callable[[], MatchPredictor], refit_requests: int = 0
    ) -> None:
        """`refit_requests`: so many requests at least lie between two fits; 0: no such limit, as when serving."""
        self._predictors: dict[int, MatchPredictor] = {}
        """By group: requests that fit each other."""
        self._vector_of = vector_of
        self._new = new
        self._every = refit_requests
        self._asked = 0
        self._fit_from = 0
        """So many requests must have asked before the next fit."""
        self.fits = 0

    def left(self, entries: Iterable[tuple[int, str]]) -> None:
        """(group, name) of those that made room for a request."""
        for group, name in entries:
            self._predictors[group].update({}, (name,))
            if not len(self._predictors[group]):
                del self._predictors[group]
        self._refit()

    def came(self, group: int, name: str, request: int) -> None:
        if group not in self._predictors:
            self._predictors[group] = self._new()
        self._predictors[group].update({name: self._vector_of(request)}, ())
        self._refit()

    def opens(self, group: int, request: int) -> tuple[bool, float]:
        """Return whether the request is looked up, and the predictor's score; (False, −1) of an empty group."""
        self._asked += 1
        predictor = self._predictors.get(group)
        return (False, -1.0) if predictor is None else predictor.predict(self._vector_of(request))

    def _refit(self) -> None:
        if self._asked < self._fit_from:
            return
        for predictor in self._predictors.values():
            fit = predictor.refit()
            if fit is not None:
                fit()
                self.fits += 1
                self._fit_from = self._asked + self._every


def gate_of(policy: PolicySettings, vector_of: Callable[[int], Vector], table: KTable) -> Gate | None:
    """Return what stands in front of the policy's lookups; None where every request is looked up."""
    match policy.predictor:
        case "svm":
            return Gate(vector_of, OneClassSvm, policy.refit_requests)
        case "sketch":
            return Gate(vector_of, lambda: Sketch(lambda: table.lowest_similarity, SKETCH_MARGIN))
        case "always":
            return None
