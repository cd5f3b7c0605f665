"""The decisions of one policy over one trace, request by request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from services.retriever.selection import Weighed


@dataclass(frozen=True)
class Decisions:
    """What was decided for each request, in order."""

    start_step: npt.NDArray[np.int16]
    """K of T; T for a picture handed out as it is."""
    source: npt.NDArray[np.int32]
    """The request whose state or picture it started from; −1 from noise."""
    similarity: npt.NDArray[np.float32]
    evicted: npt.NDArray[np.int32]
    """States that left for this request's."""
    states: npt.NDArray[np.int32]
    """States held afterwards."""
    bytes: npt.NDArray[np.int64]
    predicted: npt.NDArray[np.bool_]
    """Whether the match predictor said that a lookup is worth it; all true where none is asked."""
    score: npt.NDArray[np.float32]
    """The match predictor's score; 1 where none is asked."""
    found: npt.NDArray[np.bool_]
    """Whether a lookup would have found a state to start from."""
    searched: int = 0
    """Requests whose listed neighbours did not decide, so that all live entries were compared."""


def nothing_decided(count: int) -> Decisions:
    """To be filled in."""
    return Decisions(
        np.zeros(count, np.int16), np.full(count, -1, np.int32), np.zeros(count, np.float32),
        np.zeros(count, np.int32), np.zeros(count, np.int32), np.zeros(count, np.int64),
        np.ones(count, np.bool_), np.ones(count, np.float32), np.zeros(count, np.bool_),
    )  # fmt: skip


class Looked(NamedTuple):
    """What the lookup of one request decided."""

    start_step: int
    similarity: float
    entry_id: str
    predicted: bool
    score: float
    found: bool
    thought_of: Sequence[Weighed]
    """Every candidate of a lookup that was made."""
