"""Levels (K of 50) of the `afterimage` policy: steps of other runs brought to 50, and the levels beside each one."""

from __future__ import annotations

import numpy as np

from services.cache_maintainer.eviction.demand import Ints

OF = 50
"""Steps of the run that levels count; those of a shorter or longer one are brought to it."""


def of_50(step: int, total: int) -> int:
    """The K of 50 that a step of a run of `total` was scaled from: k·T/50 is rounded down, so this is rounded up."""
    return step if total == OF else -(-step * OF // total)


def beside(count: int) -> tuple[Ints, Ints]:
    """For each set of states (bits) and level: 1 + the next lower one there, or 0; the next higher one, or `count`."""
    below = np.zeros((2**count, count), np.int64)
    above = np.full((2**count, count), count, np.int64)
    for held in range(2**count):
        for place in range(count):
            below[held, place] = max((one + 1 for one in range(place) if held >> one & 1), default=0)
            above[held, place] = min((one for one in range(place + 1, count) if held >> one & 1), default=count)
    return below, above
