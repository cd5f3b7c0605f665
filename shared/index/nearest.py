"""Exact nearest-neighbour comparison with one deterministic order, shared by all callers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from shared.domain.types import Vector

Cosines: TypeAlias = npt.NDArray[np.float32]
Places: TypeAlias = npt.NDArray[np.intp]


def cosines(rows: npt.NDArray[np.float32], query: Vector) -> Cosines:
    """Return the cosines of unit rows, shape (rows, dim), with a unit query, as shape (rows,); none exceeds 1.

    The same two vectors give bit-identical cosines with any other rows. vecdot, not @: BLAS would start threads that
    wait for each other on a busy machine (8 ms against .14 ms at 4,000 rows). Its sums also depend on the number of
    rows.
    """
    scores: Cosines = np.minimum(np.vecdot(rows, query), np.float32(1.0))
    return scores


def nearest(scores: Cosines, limit: int, names: Callable[[Places], npt.NDArray[Any]]) -> list[int]:
    """Return the positions of the `limit` best scores, best first; among equals, the largest name first.

    Names grow with time. Among images for identical words, the youngest is therefore found, which the retriever prefers
    (retriever/selection.py).
    """
    among = len(scores)
    if among <= 4 * limit:  # sorting all of them is as fast
        rising = np.lexsort((names(np.arange(among)), scores))
    else:
        least = np.partition(scores, among - limit)[among - limit]
        places = np.flatnonzero(scores >= least)
        rising = places[np.lexsort((names(places), scores[places]))]
    found: list[int] = rising[::-1][:limit].tolist()
    return found
