"""What every policy is offered alike, and the exact search among live entries that neighbour lists cannot answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from services.replay.traces.encoders import Rows
from services.replay.traces.neighbours import Neighbours
from services.replay.traces.surrogate import PictureLoad
from services.replay.traces.trace import Trace
from shared.index.nearest import cosines, nearest
from shared.models.card import ModelCard
from shared.models.k_table import KTable


@dataclass(frozen=True)
class Load:
    """What every policy is offered alike."""

    trace: Trace
    vectors: Rows
    """One unit row per text."""
    text_of: npt.NDArray[np.int64]
    """(requests,): each one's row of `vectors`."""
    neighbours: Neighbours
    table: KTable
    state_bytes: npt.NDArray[np.int64]
    """(requests,): what one state of each takes."""
    picture_bytes: npt.NDArray[np.int64]
    """(requests,): what the finished picture of each takes."""
    group_of: npt.NDArray[np.int64] | None = None
    """(requests,): only a request of the same group is compatible; None: all are."""
    steps: int = 50
    """T of every request, where the trace does not give each its own."""
    pictures: PictureLoad | None = None
    """What stands for similarities to pictures; None: no policy asks for them."""
    card: ModelCard | None = None
    """Whose schedule says which states fit a request that takes a T of its own."""


class LiveRows:
    """The live entries' vectors in one matrix, for the searches that the neighbour lists cannot answer."""

    def __init__(self, load: Load, *, any_group: bool) -> None:
        """`any_group`: what is there starts requests of every group."""
        self._load = load
        self._group_of = None if any_group else load.group_of
        self._rows = np.empty((1024, load.vectors.shape[1]), np.float32)
        self._requests = np.empty(1024, np.int64)
        self._place: dict[int, int] = {}

    def add(self, request: int) -> None:
        place = len(self._place)
        if place == len(self._rows):
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
            self._requests = np.concatenate([self._requests, np.empty_like(self._requests)])
        self._place[request] = place
        self._rows[place] = self._load.vectors[self._load.text_of[request]]
        self._requests[place] = request

    def remove(self, request: int) -> None:
        place, last = self._place.pop(request), len(self._place)
        if place != last:
            moved = int(self._requests[last])
            self._rows[place], self._requests[place] = self._rows[last], moved
            self._place[moved] = place

    def nearest(self, request: int, limit: int, floor: float) -> list[tuple[int, float]]:
        """(request, cosine) of the nearest live entries above the floor, best first, equal ones the latest first."""
        requests = self._requests[: len(self._place)]
        scores = cosines(self._rows[: len(self._place)], self._load.vectors[self._load.text_of[request]])
        if self._group_of is not None:
            fit = self._group_of[requests] == self._group_of[request]
            requests, scores = requests[fit], scores[fit]
        order = np.array(nearest(scores, limit, requests.__getitem__), np.intp)
        order = order[scores[order] > floor]
        return list(zip(requests[order].tolist(), scores[order].tolist(), strict=True))
