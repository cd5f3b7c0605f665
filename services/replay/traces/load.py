"""Inputs that all policies share, and the exact search among live entries for lists that are too short."""

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
    """Inputs that are the same for every policy."""

    trace: Trace
    vectors: Rows
    """Unit vectors, shape (texts, dim)."""
    text_of: npt.NDArray[np.int64]
    """(requests,): each request's row of `vectors`."""
    neighbours: Neighbours
    table: KTable
    state_bytes: npt.NDArray[np.int64]
    """(requests,): bytes of one state."""
    picture_bytes: npt.NDArray[np.int64]
    """(requests,): bytes of the finished image."""
    group_of: npt.NDArray[np.int64] | None = None
    """(requests,): group of compatible requests; None: all requests are compatible."""
    steps: int = 50
    """T of every request, if the trace has no T of its own."""
    pictures: PictureLoad | None = None
    """Surrogate similarities to images; None: no policy uses them."""
    card: ModelCard | None = None
    """Model whose schedule decides which states fit, if each request has its own T."""
    parts: tuple[Load, Load] | None = None
    """The same with the embeddings of objects and of backgrounds, for pairs; None: no policy has pairs."""
    pairs_by: KTable | None = None
    """Table for pairs; None: `table`."""

    @property
    def pair_table(self) -> KTable:
        return self.pairs_by or self.table


class LiveRows:
    """Vectors of the live entries in one matrix, for searches beyond the neighbour lists."""

    def __init__(self, load: Load, *, any_group: bool) -> None:
        """Take the load; with `any_group` entries start requests of every group."""
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
        """Return (request, cosine) of the nearest live entries above `floor`, best first, ties latest first."""
        requests = self._requests[: len(self._place)]
        scores = cosines(self._rows[: len(self._place)], self._load.vectors[self._load.text_of[request]])
        if self._group_of is not None:
            fit = self._group_of[requests] == self._group_of[request]
            requests, scores = requests[fit], scores[fit]
        order = np.array(nearest(scores, limit, requests.__getitem__), np.intp)
        order = order[scores[order] > floor]
        return list(zip(requests[order].tolist(), scores[order].tolist(), strict=True))
