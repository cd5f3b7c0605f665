"""Which rows are nearest to a query: compared exactly, and in one order, wherever that is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from shared.domain.types import Vector

Cosines: TypeAlias = npt.NDArray[np.float32]
Places: TypeAlias = npt.NDArray[np.intp]


def cosines(rows: npt.NDArray[np.float32], query: Vector) -> Cosines:
    """(rows,): of unit rows, shape (rows, dim), with a unit query; rounding never brings one above 1.

    The same two vectors give the same bits among any others. vecdot, not @: BLAS would start threads that wait for
    each other on a busy machine (8 ms against .14 at 4,000), and its sums depend on how many rows there are.
    """
    scores: Cosines = np.minimum(np.vecdot(rows, query), np.float32(1.0))
    return scores


def nearest(scores: Cosines, limit: int, names: Callable[[Places], npt.NDArray[Any]]) -> list[int]:
    """Places of the `limit` best scores, best first; equal ones by name, the largest first: names grow with time, so
    that of pictures for the very same words the youngest is found, as it is preferred (retriever/selection.py)."""
    among = len(scores)
    if among <= 4 * limit:  # sorting them all is as fast
        rising = np.lexsort((names(np.arange(among)), scores))
    else:
        least = np.partition(scores, among - limit)[among - limit]
        places = np.flatnonzero(scores >= least)
        rising = places[np.lexsort((names(places), scores[places]))]
    found: list[int] = rising[::-1][:limit].tolist()
    return found
