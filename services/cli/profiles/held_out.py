"""Calibrate a learned bound, and measure its coverage and savings on held-out pairs beside an oracle's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from services.cli.profiles.learning import Data, kind_means
from services.retriever.learned import Bools, Ints, expected, last_level, margins
from shared.models.learned_table import Floats

COVERAGE = 0.95
"""Least share of requests whose plan keeps every bound."""
CALIBRATED = 0.97
"""Share that the margin is calibrated for. Plans of one kind of change are wrong together, so the share of other pairs
scatters more than that of single wrong plans would."""
FOLDS = 5
Scores = Mapping[int, Floats]
"""T → (pairs, levels): expected margins; a start's must be at least the calibrated one."""
Method = Callable[[Data, Data], Scores]
"""(pairs with measured images, other pairs) → the scores of the others."""
Shares = Callable[[Data], tuple[Floats, Floats]]
"""Pairs → their probabilities of the kinds of change (pairs, kinds), and their shares of unknown words."""


def labels(data: Data, kinds: tuple[str, ...], allowed: Floats) -> dict[int, Bools]:
    """Return for each T, pair and level whether a start keeps every bound: (pairs, levels).

    A start keeps its bounds if the mean change over the pairs of its kind does, for each measure (`kind_means`). One
    image proves nothing, since another seed changes an image's look and attributes too. A K counts only with all K
    below it. Copying is bounded for pairs that no planner would call an edit.
    """
    own = np.array([kinds.index(kind) for kind in data.kinds])
    return {
        steps: score >= 0 for steps, score in _scores(data, kind_means(data, kinds), np.eye(len(kinds))[own], allowed)
    }


def learned(shares: Shares, kinds: tuple[str, ...], allowed: Floats) -> Method:
    """Return the learned bound's scores: the margins of the kinds, measured on some pairs, expected for others."""

    def method(data: Data, other: Data) -> Scores:
        probable, unknown = shares(other)
        return dict(_scores(other, kind_means(data, kinds), probable, allowed, unknown))

    return method


def _scores(
    data: Data,
    means: Mapping[int, tuple[Floats, Floats]],
    shares: Floats,
    allowed: Floats,
    unknown: Floats | None = None,
) -> list[tuple[int, Floats]]:
    unknown = np.zeros(len(shares)) if unknown is None else unknown
    found = []
    for steps, (mean, error) in means.items():
        free, bounded = (expected(shares, unknown, margins(mean, error, allowed, copying)) for copying in (False, True))
        found.append((steps, np.where(data.topic[:, None], bounded, free)))
    return found


@dataclass(frozen=True)
class Outcome:
    """The plans of one method at one T."""

    coverage: float
    """Share of requests whose plan keeps every bound; a plan from noise does."""
    of_starts: float
    """The same share of the requests that start after a K."""
    saved: float
    """Mean share of the T steps that a plan skips."""
    starts: float
    """Share of requests that start after a K."""


def outcome(index: Ints, kept: Bools, ks: tuple[int, ...], steps: int) -> Outcome:
    """index: (pairs,), the level of each pair + 1; 0: from noise."""
    right, started = ~_wrong(index, kept), index > 0
    saved = np.array([0, *ks])[index] / steps
    of_starts = float(right[started].mean()) if started.any() else 1.0
    return Outcome(float(right.mean()), of_starts, float(saved.mean()), float(started.mean()))


def oracle(kept: Bools, ks: tuple[int, ...], coverage: float = COVERAGE) -> Ints:
    """Return the levels that save most steps at this coverage, chosen with knowledge of the labels."""
    best: Ints = kept.sum(axis=1)
    every = np.array([0, *ks])
    gain = every[-1] - every[best]
    best[np.argsort(-gain, kind="stable")[: int((1 - coverage) * len(best))]] = len(ks)
    return best


def calibrated(score: Floats, kept: Bools, coverage: float = CALIBRATED) -> float:
    """Return the least margin at which the share of plans outside their bounds stays at most 1 − coverage.

    Conformal risk control (Angelopoulos et al., 2022): one more plan outside its bounds is counted, so that the share
    of further requests holds in expectation. A smaller margin only adds starts.
    """
    best = 1.01
    for margin in np.linspace(1.0, -1.0, 401):
        if (_wrong(last_level(score, margin), kept).sum() + 1) / (len(score) + 1) > 1 - coverage:
            break
        best = margin
    return float(best)


def _wrong(index: Ints, kept: Bools) -> Bools:
    found: Bools = (index > 0) & ~kept[np.arange(len(index)), np.maximum(index - 1, 0)]
    return found


def folds_of(count: int, seed: int = 0) -> list[Ints]:
    """Return the pairs' numbers in FOLDS parts."""
    return np.array_split(np.random.default_rng(seed).permutation(count), FOLDS)


def out_of_fold(data: Data, method: Method, seed: int = 0) -> dict[int, Floats]:
    """Return each pair's scores by the pairs of the other folds."""
    scores = {steps: np.empty(change.shape[:2]) for steps, change in data.change.items()}
    for held in folds_of(len(data.near), seed):
        rest = np.setdiff1d(np.arange(len(data.near)), held)
        for steps, score in method(data.rows(rest), data.rows(held)).items():
            scores[steps][held] = score
    return scores


def held_out(data: Data, method: Method, kept: Mapping[int, Bools]) -> dict[int, Ints]:
    """Return each pair's last level, by measurements and a margin of other pairs (nested folds)."""
    index = {steps: np.zeros(len(data.near), int) for steps in data.change}
    for held in folds_of(len(data.near)):
        rest = np.setdiff1d(np.arange(len(data.near)), held)
        inner = out_of_fold(data.rows(rest), method, seed=1)
        for steps, score in method(data.rows(rest), data.rows(held)).items():
            index[steps][held] = last_level(score, calibrated(inner[steps], kept[steps][rest]))
    return index
