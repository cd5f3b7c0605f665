"""Run the serving match predictor in a replay; it is fitted as the cache changes (NIRVANA §5.2)."""

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
    """Decides which requests are looked up, with one predictor for each group of entries that fit each other.

    A predictor is dropped with the last entry of its group, as in serving. It receives evicted entries first and new
    entries second. After each step the predictor checks whether enough entries changed for a new fit.
    """

    def __init__(
        self, vector_of: Callable[[int], Vector], new: Callable[[], MatchPredictor], refit_requests: int = 0
    ) -> None:
        """Take the minimum number of requests between two fits (`refit_requests`; 0: no limit, as in serving)."""
        self._predictors: dict[int, MatchPredictor] = {}
        """Predictors by group of requests that fit each other."""
        self._vector_of = vector_of
        self._new = new
        self._every = refit_requests
        self._asked = 0
        self._fit_from = 0
        """Number of the first request after which the next fit is allowed."""
        self.fits = 0

    def left(self, entries: Iterable[tuple[int, str]]) -> None:
        """Remove evicted entries, given as (group, name)."""
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
        """Return whether the request is looked up, and the predictor's score; (False, −1) for an empty group."""
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
    """Return the match predictor of a policy; None if every request is looked up."""
    match policy.predictor:
        case "svm":
            return Gate(vector_of, OneClassSvm, policy.refit_requests)
        case "sketch":
            return Gate(vector_of, lambda: Sketch(lambda: table.lowest_similarity, SKETCH_MARGIN))
        case "always":
            return None
