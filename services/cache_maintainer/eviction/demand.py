"""Expected savings of cached states, learned from lookups (`afterimage` policy; docs/architecture.md, Planning).

Entries are sorted into kinds. An entry's silence is the number of seconds since its creation or its last use as a
start. Two things are counted per kind and silence bin: the seconds that entries spent there, and the requests that
would have started from one of them. Each request is counted with its wished K and with the K that the rest of the cache
offered.

Requests divided by seconds are a rate for each wished K and offered K. The worth of one state, in steps per second, is
this rate times the steps that are lost without the state, given the entry's other states.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from math import log2

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

HISTOGRAM_BINS = 16
"""Bins of silence. Each is 1.6 times as long as the previous one; the first is 2 s, the last is 50 minutes and more."""
FIRST_S, GROWTH = 3.0, 1.5
PRIOR_S = 1500.0
"""Weight of the prior in seconds: each kind starts with this much of its rank's behaviour."""
BELIEF = 0.1
"""Weight of the prior rate: an entry silent for s seconds gets BELIEF / (s + FIRST_S) requests per second.

The rate is split evenly over all K.
"""
FORGET = 0.98
"""Factor by which counts decay from one fit to the next."""


class Demand:
    """Counts by (kind, silence, wished K, K available otherwise), and the worths fitted to them."""

    def __init__(self, levels: Sequence[int], ranks: int, kinds_per_rank: int, *, whole: bool = False) -> None:
        """`levels`: the K whose states are kept. A kind is rank · kinds_per_rank + the other classes.

        `whole`: an entry has all levels or none, and its highest level represents the entry.
        """
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
        """Return the number of levels that are not above `step`; 0 for none."""
        return bisect_right(self.levels, step)

    def asked(self, kind: int, silent_s: float, wished: int, otherwise: int) -> None:
        """Count a request that wished for K = `wished` from an entry and otherwise had K = `otherwise`."""
        self._asked[kind, silence(silent_s), self.place(wished), self.place(otherwise)] += 1

    def waited(self, kinds: Ints, silent_s: Floats, seconds: float) -> None:
        """Add the seconds for which entries of these kinds were present."""
        np.add.at(self._waited, (kinds, silences(silent_s)), seconds)

    def fit(self) -> None:
        """Compute rates from counts, each kind shrunk towards its rank, each rank towards all, all towards BELIEF."""
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
        """Return the steps saved per second by the state at level index `place` (from 0) of entries of these kinds.

        `below`: 1 + the index of the entry's next lower state, 0 for none. `above`: the index of the next higher state,
        the number of levels for none. The rate is the best average over any period that starts now, so that a state
        used one second ago does not count as idle.
        """
        worth: Floats = self._worth[kinds, silences(silent_s), place, below, above]
        return worth

    def worth_of(self, kind: int, silent_s: float, place: int, below: int, above: int) -> float:
        """Return `worth` of one state."""
        return float(self._worth[kind, silence(silent_s), place, below, above])


def silence(seconds: float) -> int:
    """Return the silence bin of this many seconds."""
    return min(int(log2(max(seconds, 0.0) / FIRST_S + 1) * GROWTH), HISTOGRAM_BINS - 1)


def silences(seconds: Floats) -> Ints:
    """Return `silence` of each element."""
    return np.minimum((np.log2(np.maximum(seconds, 0.0) / FIRST_S + 1) * GROWTH).astype(np.int64), HISTOGRAM_BINS - 1)


def _edges() -> Floats:
    """Return the seconds at which each silence bin begins, and the nominal end of the last bin."""
    edges: Floats = (2.0 ** (np.arange(HISTOGRAM_BINS + 1) / GROWTH) - 1) * FIRST_S
    return edges


def _belief(size: int) -> Floats:
    """Return BELIEF as rates, shape (silences, wished K, K otherwise)."""
    rates = np.zeros((HISTOGRAM_BINS, size, size))
    rates[:, 1:, 0] = (BELIEF / (FIRST_S + _edges()[:-1]) / (size - 1))[:, None]
    return rates


@cache  # every start of a maintainer asks for the same
def _gains(levels: tuple[int, ...], *, whole: bool) -> Floats:
    """Return the steps lost without the state (with `whole`: without its entry).

    Shape: (place, below, above, wished K, K otherwise), all as level indices. Read-only.
    """
    count = len(levels)
    steps = (0, *levels)
    gains = np.zeros((count, count + 1, count + 1, count + 1, count + 1))
    for place in range(count):
        for below in range(place + 1):
            for above in range(place + 1, count + 1):
                # for a wished K beyond `above`, the higher state is used
                for wished in range(1 if whole else place + 1, above + 1):
                    for other in range(count + 1):
                        kept = steps[wished] if whole else steps[place + 1]
                        gain = kept - max(steps[below], steps[other])
                        gains[place, below, above, wished, other] = max(0, gain)
    gains.setflags(write=False)
    return gains


def _ahead(now: Floats) -> Floats:
    """Turn the rate at each silence (axis 1) into the best average over the silences from there on."""
    widths = np.diff(_edges())
    there = np.moveaxis(now, 1, 0) * widths[:, None, None, None, None]
    ahead = np.zeros_like(now)
    for first in range(HISTOGRAM_BINS):
        gained = np.zeros_like(now[:, 0])
        for gain, seconds in zip(there[first:], np.cumsum(widths[first:]), strict=True):
            gained += gain
            np.maximum(ahead[:, first], gained / seconds, out=ahead[:, first])
    return ahead
