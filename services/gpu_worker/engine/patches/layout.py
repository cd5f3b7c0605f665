"""Layout of a batch of patches: order of the requests, offsets and neighbours (PatchedServe §4.1), pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from shared.domain.types import Size
from shared.models.card import SizeRule

NONE = -1
"""Neighbour of a patch at a border of its image."""

Shape = tuple[int, int]
"""Height and width of an image in latent cells."""


@dataclass(frozen=True)
class Resolution:
    """All requests of one shape; they, and their patches, are consecutive in the layout."""

    rows: int
    """Rows of patches in an image."""
    columns: int
    requests: slice
    """Places in `Layout.order`."""
    patches: slice

    @property
    def count(self) -> int:
        return self.requests.stop - self.requests.start


@dataclass(frozen=True, eq=False)
class Layout:
    """Places of the patches of a batch; each array has one entry per patch, in the order of the patches.

    Requests are ordered by resolution, and the patches of a request row by row. A request here is one forward pass: a
    request with guidance counts twice.
    """

    side: int
    """Latent cells per side of a patch."""
    order: tuple[int, ...]
    """Index in the batch of each request of the layout."""
    request_offsets: tuple[int, ...]
    """First patch of each request, and the number of patches."""
    resolutions: tuple[Resolution, ...]
    """Slices of requests and patches of equal shape: the paper's resolution offsets."""
    left: npt.NDArray[np.int64]
    """Patch on the left, or NONE; `right`, `up` and `down` likewise."""
    right: npt.NDArray[np.int64]
    up: npt.NDArray[np.int64]
    down: npt.NDArray[np.int64]

    @property
    def patches(self) -> int:
        return self.request_offsets[-1]

    @cached_property
    def requests(self) -> npt.NDArray[np.int64]:
        """Return the place in `order` of each patch's request."""
        return np.repeat(np.arange(len(self.order)), np.diff(self.request_offsets))


def layout_of(shapes: Sequence[Shape], side: int) -> Layout:
    """Lay out a batch of images of these shapes; each side must be a multiple of `side`.

    Raises ValueError for an empty batch and for a shape that patches do not fill.
    """
    if not shapes or any(not fits(shape, side) for shape in shapes):
        raise ValueError(f"shapes must be multiples of {side} latent cells, at least one (got {list(shapes)})")
    order = tuple(sorted(range(len(shapes)), key=lambda i: shapes[i]))
    grids = [(shapes[i][0] // side, shapes[i][1] // side) for i in order]
    offsets = (0, *np.cumsum([rows * columns for rows, columns in grids]).tolist())
    found = [_neighbours(first, *grid) for first, grid in zip(offsets, grids, strict=False)]
    left, right, up, down = (np.concatenate(each) for each in zip(*found, strict=True))
    return Layout(side, order, offsets, _resolutions(grids, offsets), left, right, up, down)


def fits(shape: Shape, side: int) -> bool:
    """Return whether patches of this side fill an image of this shape."""
    return all(cells > 0 and cells % side == 0 for cells in shape)


def patch_side(sizes: SizeRule, default: Size, cell_px: int, multiple: int) -> int:
    """Return the latent cells per side of a card's patches: the largest side that divides all sizes of the card.

    A card with a range of sizes has no useful common divisor; there, a quarter of the default size is taken (256 pixels
    of 1024, as in PatchedServe §8). A side that is no multiple of `multiple` cells becomes `multiple`, which fills
    every size that any side fills: every level of the UNet halves whole patches, so 2^(levels − 1) is the smallest.
    """
    sides = [px // cell_px for size in sizes.sizes for px in (size.height, size.width)]
    side = math.gcd(*sides) if sides else math.gcd(default.height, default.width) // cell_px // 4
    return side if side and side % multiple == 0 else multiple


def _neighbours(first: int, rows: int, columns: int) -> tuple[npt.NDArray[np.int64], ...]:
    """Return left, right, up and down neighbours of an image's patches; `first`: number of its first patch."""
    framed = np.full((rows + 2, columns + 2), NONE, dtype=np.int64)
    framed[1:-1, 1:-1] = first + np.arange(rows * columns).reshape(rows, columns)
    sides = framed[1:-1, :-2], framed[1:-1, 2:], framed[:-2, 1:-1], framed[2:, 1:-1]
    return tuple(side.ravel() for side in sides)


def _resolutions(grids: Sequence[Shape], offsets: Sequence[int]) -> tuple[Resolution, ...]:
    """Return the slices of equal grids, which follow each other."""
    starts = [i for i, grid in enumerate(grids) if i == 0 or grid != grids[i - 1]]
    return tuple(
        Resolution(*grids[start], slice(start, stop), slice(offsets[start], offsets[stop]))
        for start, stop in zip(starts, [*starts[1:], len(grids)], strict=True)
    )
