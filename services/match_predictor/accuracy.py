"""Live precision and recall of the predictor, from the lookups that show whether a prediction was right.

Only a sample of the predicted misses is looked up, so these are weighted by the inverse of the sampled share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

WINDOW = 10_000
"""Judged predictions after which all earlier counts are halved, so that the figures follow the traffic."""


@dataclass(frozen=True, slots=True)
class Confusion:
    """Weighted counts of predictions that a lookup confirmed or refuted."""

    true_hits: float = 0.0
    false_hits: float = 0.0
    missed_hits: float = 0.0
    true_misses: float = 0.0
    judged: int = 0
    """Predictions judged since the start."""

    @property
    def precision(self) -> float:
        """Share of predicted hits that were hits (c_p of NIRVANA §5.2); nan without data."""
        return _share(self.true_hits, self.false_hits)

    @property
    def recall(self) -> float:
        """Share of hits that were predicted; nan without data."""
        return _share(self.true_hits, self.missed_hits)

    def judge(self, predicted: bool | None, found: bool | None, sampled_share: float) -> Confusion:
        """Return the counts with one more outcome; unchanged if there was no prediction or no lookup.

        A predicted miss counts 1 / `sampled_share` times, because only that share of them is looked up.
        """
        if predicted is None or found is None:
            return self
        weight = 1.0 if predicted or sampled_share <= 0 else 1.0 / sampled_share
        name = {(True, True): "true_hits", (True, False): "false_hits", (False, True): "missed_hits"}.get(
            (predicted, found), "true_misses"
        )
        aged = self._halved() if self.judged and self.judged % WINDOW == 0 else self
        return replace(aged, judged=self.judged + 1, **{name: getattr(aged, name) + weight})

    def _halved(self) -> Confusion:
        return Confusion(
            self.true_hits / 2, self.false_hits / 2, self.missed_hits / 2, self.true_misses / 2, self.judged
        )


def _share(part: float, rest: float) -> float:
    return part / (part + rest) if part + rest else math.nan
