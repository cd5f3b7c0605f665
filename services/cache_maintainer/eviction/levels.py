"""Levels (K of 50) of the `afterimage` policy: scaling of other step counts to 50, and the neighbours of each level."""

from __future__ import annotations

from functools import cache

import numpy as np

from services.cache_maintainer.eviction.demand import Ints

OF = 50
"""Step count for which levels are defined; steps of shorter or longer runs are scaled to it."""


def of_50(step: int, total: int) -> int:
    """Return the K of 50 from which a step of a run of `total` steps was scaled.

    k·T/50 is rounded down, so this inverse is rounded up.
    """
    return step if total == OF else -(-step * OF // total)


@cache  # every start of a maintainer asks for the same
def beside(count: int) -> tuple[Ints, Ints]:
    """Return the neighbours of each level, for each set of states that an entry may hold (bit mask).

    Below: 1 + the next lower level present, or 0. Above: the next higher level present, or `count`. Both are
    read-only.
    """
    below = np.zeros((2**count, count), np.int64)
    above = np.full((2**count, count), count, np.int64)
    for held in range(2**count):
        for place in range(count):
            below[held, place] = max((one + 1 for one in range(place) if held >> one & 1), default=0)
            above[held, place] = min((one for one in range(place + 1, count) if held >> one & 1), default=count)
    below.setflags(write=False)
    above.setflags(write=False)
    return below, above
