"""What states of the cache will save, learned from what lookups ask for (the `afterimage` policy; design §4).

Entries are sorted into kinds; for each kind, and each length of an entry's silence (the seconds since it was made or
last started from), two things are counted while serving: the seconds that entries spent there, and the requests that
would have started from one of them, each with the K it wished for and the K that the rest of the cache had for it.
Their quotient is a rate of steps saved per second, from which the worth of a single state follows: what would be lost
without it, given the entry's other states.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import log2

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

HISTOGRAM_BINS = 16
"""Lengths of silence told apart; each is 1.6 times the one before, the first 2 s, the last 50 minutes and more."""
FIRST_S, GROWTH = 3.0, 1.5
PRIOR_S = 1500.0
"""Seconds that a kind counts as if it had behaved like all kinds of its rank."""
BELIEF = 0.1
"""Before anything was seen: an entry is asked for at this share of one over its silence, for every K alike."""
FORGET = 0.98
"""What counts keep of their weight from one fit to the next."""


class Demand:
    """Counts by (kind, silence, K wished, K there otherwise), and the worths fitted to them."""

    def __init__(self, levels: Sequence[int], ranks: int, kinds_per_rank: int, *, whole: bool = False) -> None:
        """levels: the K whose states are kept; kind = rank · kinds_per_rank + the rest; whole: an entry has all of them
        or none, and its highest level stands for it."""
        self.levels = tuple(sorted(levels))
        self._shape = ranks, kinds_per_rank
        size = len(self.levels) + 1
        self._asked = np.zeros((ranks * kinds_per_rank, HISTOGRAM_BINS, size, size))
        self._waited = np.zeros((ranks * kinds_per_rank, HISTOGRAM_BINS))
        self._gains = _gains(self.levels, whole=whole)
        self._belief = _belief(size)
        count = len(self.levels)
        self._worth = np.zeros((ranks * kinds_per_rank, HISTOGRAM_BINS, count, count + 1, count + 1))
        self.fits = 0

    def place(self, step: int) -> int:
        """How many of the levels are not above `step`: 0 for none."""
        return bisect_right(self.levels, step)

    def asked(self, kind: int, silent_s: float, wished: int, otherwise: int) -> None:
        """A request wished to start after `wished` steps of an entry, and had `otherwise` without it."""
        self._asked[kind, silence(silent_s), self.place(wished), self.place(otherwise)] += 1

    def waited(self, kinds: Ints, silent_s: Floats, seconds: float) -> None:
        """So long were entries of these kinds there."""
        np.add.at(self._waited, (kinds, silences(silent_s)), seconds)

    def fit(self) -> None:
        """Rates from counts: each kind's, drawn towards its rank's, that towards everyone's, that towards BELIEF."""
        ranks, rest = self._shape
        asked = self._asked.reshape(ranks, rest, *self._asked.shape[1:])
        waited = self._waited.reshape(ranks, rest, HISTOGRAM_BINS)
        everyone = (asked.sum((0, 1)) + PRIOR_S * self._belief) / (waited.sum((0, 1)) + PRIOR_S)[:, None, None]
        of_rank = (asked.sum(1) + PRIOR_S * everyone) / (waited.sum(1) + PRIOR_S)[..., None, None]
        rates = (asked + PRIOR_S * of_rank[:, None]) / (waited + PRIOR_S)[..., None, None]
        now = np.tensordot(rates.reshape(self._asked.shape), self._gains, axes=([2, 3], [3, 4]))
        self._worth = _ahead(now)
        self._asked *= FORGET
        self._waited *= FORGET
        self.fits += 1

    def worth(self, kinds: Ints, silent_s: Floats, place: int, below: Ints, above: Ints) -> Floats:
        """Steps saved per second by the state at level `place` (from 0) of entries of these kinds.

        below: 1 + the place of the entry's next lower state, 0 for none; above: the place of its next higher one,
        the number of levels for none. The rate is the best average over any time from now on: what was used a
        second ago is not idle.
        """
        worth: Floats = self._worth[kinds, silences(silent_s), place, below, above]
        return worth

    def worth_of(self, kind: int, silent_s: float, place: int, below: int, above: int) -> float:
        """The same for one state."""
        return float(self._worth[kind, silence(silent_s), place, below, above])


def silence(seconds: float) -> int:
    """Which length of silence this is."""
    return min(int(log2(max(seconds, 0.0) / FIRST_S + 1) * GROWTH), HISTOGRAM_BINS - 1)


def silences(seconds: Floats) -> Ints:
    """`silence` of each."""
    return np.minimum((np.log2(np.maximum(seconds, 0.0) / FIRST_S + 1) * GROWTH).astype(np.int64), HISTOGRAM_BINS - 1)


def _edges() -> Floats:
    """Seconds at which each length of silence begins, and the last one's nominal end."""
    edges: Floats = (2.0 ** (np.arange(HISTOGRAM_BINS + 1) / GROWTH) - 1) * FIRST_S
    return edges


def _belief(size: int) -> Floats:
    """BELIEF as rates, shape (silences, K wished, K otherwise)."""
    rates = np.zeros((HISTOGRAM_BINS, size, size))
    rates[:, 1:, 0] = (BELIEF / (FIRST_S + _edges()[:-1]) / (size - 1))[:, None]
    return rates


def _gains(levels: Sequence[int], *, whole: bool) -> Floats:
    """Steps lost without the state (`whole`: without its entry), shape (place, below, above, K wished, K otherwise) by
    places."""
    count = len(levels)
    steps = (0, *levels)
    gains = np.zeros((count, count + 1, count + 1, count + 1, count + 1))
    for place in range(count):
        for below in range(place + 1):
            for above in range(place + 1, count + 1):
                # above `above` the higher state is taken
                for wished in range(1 if whole else place + 1, above + 1):
                    for other in range(count + 1):
                        kept = steps[wished] if whole else steps[place + 1]
                        gain = kept - max(steps[below], steps[other])
                        gains[place, below, above, wished, other] = max(0, gain)
    return gains


def _ahead(now: Floats) -> Floats:
    """From rates at each silence (axis 1) to the best average over the silences from there on."""
    widths = np.diff(_edges())
    there = np.moveaxis(now, 1, 0) * widths[:, None, None, None, None]
    ahead = np.zeros_like(now)
    for first in range(HISTOGRAM_BINS):
        gained = np.zeros_like(now[:, 0])
        for gain, seconds in zip(there[first:], np.cumsum(widths[first:]), strict=True):
            gained += gain
            np.maximum(ahead[:, first], gained / seconds, out=ahead[:, first])
    return ahead
