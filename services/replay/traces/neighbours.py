"""Compute every request's nearest earlier requests, once per trace and encoder, for all policies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from services.replay.traces.encoders import Rows
from shared.index.nearest import cosines

AT_A_TIME = 256
"""Requests compared at a time with a block of earlier ones."""
BLOCK = 16_384
"""Earlier requests of a block: 16 MB of similarities at a time, for a trace of any length."""
SAVED = 100 * AT_A_TIME
"""Requests between two writes of unfinished lists."""
SPARE = 8
"""Extra candidates, because the matrix product and the exact score may order near ties differently."""

Indices = npt.NDArray[np.int32]
Similarities = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Neighbours:
    """Earlier requests of each request: at most `width`, in descending order of similarity, ties latest first."""

    indices: Indices
    """Earlier requests, shape (requests, width); −1 after the last one."""
    similarities: Similarities
    """Cosines, shape (requests, width); −1 after the last one."""
    cut: npt.NDArray[np.bool_]
    """(requests,): more neighbours above `floor` exist than the row holds."""
    floor: float
    """Cosine above which a neighbour counts."""

    def __len__(self) -> int:
        return len(self.cut)

    def __getitem__(self, rows: slice) -> Neighbours:
        return Neighbours(self.indices[rows], self.similarities[rows], self.cut[rows], self.floor)

    def rows(self) -> Iterator[tuple[list[int], list[float], bool]]:
        """Yield each request's neighbours as plain lists; a chunk of rows is converted at a time."""
        for start in range(0, len(self), 1024):
            part = slice(start, start + 1024)
            lengths = (self.indices[part] >= 0).sum(axis=1).tolist()
            rows = zip(self.indices[part].tolist(), self.similarities[part].tolist(), strict=True)
            for (indices, similarities), length, cut in zip(rows, lengths, self.cut[part].tolist(), strict=True):
                yield indices[:length], similarities[:length], cut

    def save(self, path: Path) -> None:
        """Write to a second file and rename it, so a killed process leaves no partial file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(".part.npz")
        np.savez(
            aside, indices=self.indices, similarities=self.similarities, cut=self.cut, floor=np.float64(self.floor)
        )
        aside.replace(path)


def load_neighbours(path: Path) -> Neighbours:
    with np.load(path) as kept:
        return Neighbours(kept["indices"], kept["similarities"], kept["cut"], float(kept["floor"]))


def find_neighbours(
    vectors: Rows,
    text_of: npt.NDArray[np.int64],
    group_of: npt.NDArray[np.int64] | None,
    *,
    floor: float,
    width: int,
    advance: Callable[[int], None] = lambda _: None,
    begun: Path | None = None,
) -> Neighbours:
    """Return the `width` nearest earlier requests of each request above `floor`.

    `vectors` has one unit row per text, `text_of` each request's row. Only requests of one group of `group_of` are
    neighbours, because a latent fits one size only; None: all requests. A matrix product finds the neighbours, and
    `cosines` scores them again, so the numbers are bit-identical to the live index's. `begun` is a file for unfinished
    lists, written every SAVED requests: an interrupted run resumes from it, and a finished run removes it.
    """
    count = len(text_of)
    found = Neighbours(
        np.full((count, width), -1, np.int32),
        np.full((count, width), -1, np.float32),
        np.zeros(count, np.bool_),
        floor,
    )
    points, done = vectors[text_of], 0
    if begun is not None and begun.is_file():
        before = load_neighbours(begun)
        done = len(before)
        found.indices[:done], found.similarities[:done], found.cut[:done] = (
            before.indices,
            before.similarities,
            before.cut,
        )
        advance(done)
    for start in range(done, count, AT_A_TIME):
        stop = min(start + AT_A_TIME, count)
        rows, others, scores = _above(points, group_of, start, stop, floor - 1e-5, width + SPARE + 1)
        ends = np.searchsorted(rows, np.arange(stop - start + 1))
        for row in range(stop - start):
            part = slice(ends[row], ends[row + 1])
            found.cut[start + row] = _keep(found, start + row, points, others[part], scores[part])
        advance(stop - start)
        if begun is not None and stop % SAVED == 0 and stop < count:
            found[:stop].save(begun)
    if begun is not None:
        begun.unlink(missing_ok=True)
    return found


def _above(
    points: Rows, group_of: npt.NDArray[np.int64] | None, start: int, stop: int, floor: float, most: int
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], Similarities]:
    """Return (row of the chunk, earlier request, similarity) of the pairs above the floor, by row.

    Each block gives only its `most` nearest pairs of a row, so a very low floor costs no memory.
    """
    rows, others, scores = [], [], []
    for first in range(0, stop, BLOCK):
        last = min(first + BLOCK, stop)
        cosines = points[start:stop] @ points[first:last].T
        if last > start:  # a request sees only earlier requests
            cosines[np.arange(first, last)[None, :] >= np.arange(start, stop)[:, None]] = -2
        if group_of is not None:
            cosines[group_of[None, first:last] != group_of[start:stop, None]] = -2
        near, other = np.nonzero(cosines > floor)
        if len(near) > most * (stop - start) and most < last - first:
            nearest = np.argpartition(-cosines, most - 1, axis=1)[:, :most]
            near, place = np.nonzero(np.take_along_axis(cosines, nearest, axis=1) > floor)
            other = nearest[near, place]
        rows.append(near)
        others.append(other + first)
        scores.append(cosines[near, other])
    row = np.concatenate(rows)
    order = np.argsort(row, kind="stable")
    return row[order], np.concatenate(others)[order], np.concatenate(scores)[order]


def _keep(found: Neighbours, request: int, points: Rows, others: npt.NDArray[np.intp], scores: Similarities) -> bool:
    """Write one request's row; return whether the row is too short for all neighbours."""
    width = found.indices.shape[1]
    if len(others) > width + SPARE:
        others = others[np.argpartition(-scores, width + SPARE - 1)[: width + SPARE]]
        cut = True
    else:
        cut = len(others) > width
    exact = cosines(points[others], points[request])
    order = np.lexsort((-others, -exact))
    order = order[exact[order] > found.floor]
    cut &= len(order) > width or len(others) > width
    order = order[:width]
    found.indices[request, : len(order)] = others[order]
    found.similarities[request, : len(order)] = exact[order]
    return cut
