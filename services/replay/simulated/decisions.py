"""Decisions of one policy over one trace, request by request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from services.retriever.selection import Weighed


@dataclass(frozen=True)
class Decisions:
    """Decision for each request of a trace, in order; every array has shape (requests,)."""

    start_step: npt.NDArray[np.int16]
    """Start step K of T; T for a stored image returned unchanged."""
    source: npt.NDArray[np.int32]
    """Request whose state or image was the start; −1: noise."""
    similarity: npt.NDArray[np.float32]
    evicted: npt.NDArray[np.int32]
    """States evicted for this request's states."""
    states: npt.NDArray[np.int32]
    """States held afterwards."""
    bytes: npt.NDArray[np.int64]
    predicted: npt.NDArray[np.bool_]
    """True for requests that the match predictor let through to a lookup; all true without a predictor."""
    score: npt.NDArray[np.float32]
    """The match predictor's score; 1 without a predictor."""
    found: npt.NDArray[np.bool_]
    """True for requests whose lookup found, or would have found, a state to start from."""
    second: npt.NDArray[np.int32]
    """Of a pair: the request whose state gave the background; −1: no pair."""
    searched: int = 0
    """Requests whose neighbour list was too short, so all live entries were compared."""


def nothing_decided(count: int) -> Decisions:
    """Return empty decisions for `count` requests."""
    return Decisions(
        np.zeros(count, np.int16), np.full(count, -1, np.int32), np.zeros(count, np.float32),
        np.zeros(count, np.int32), np.zeros(count, np.int32), np.zeros(count, np.int64),
        np.ones(count, np.bool_), np.ones(count, np.float32), np.zeros(count, np.bool_),
        np.full(count, -1, np.int32),
    )  # fmt: skip


class Looked(NamedTuple):
    """Decision of one request's lookup."""

    start_step: int
    similarity: float
    entry_id: str
    predicted: bool
    score: float
    found: bool
    thought_of: Sequence[Weighed]
    """Candidates that the lookup weighed; empty without a lookup."""
    second: str = ""
    """Of a pair: the entry that gives the background."""

    @property
    def pair(self) -> tuple[str, ...]:
        """The entries that give object and background; empty for any other start."""
        return (self.entry_id, self.second) if self.second else ()
