"""Cached tensors of a denoiser's blocks: patches that stay, that are new, and that have left (PatchedServe §5.2).

A patch here is what a block decides about: a part of an image with `layout=patches`, else a whole image. A packed image
has several rows in some tensors, one for each square of its tokens, and one row in the others.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Ints = npt.NDArray[np.int64]
Tree = Any
"""Tensors with one row per patch, (P, …), in nested tuples; None where a block returns nothing. With packed images some
have more rows (`Places`)."""
PatchId = tuple[int, int, int, tuple[int, ...]]
"""Serial number of a pass, number of the patch in the pass, number of squares that it holds, and shape of their latent.
0 squares: the image is not cut. An image that is cut another way thus has other ids, even where it is one square."""
_SERIALS = count()


@dataclass(frozen=True)
class Sets:
    """The three sets of §5.2, Fig. 9."""

    common: tuple[tuple[int, int], ...]
    """Place in the batch and place in the cache of each patch that is in both."""
    new: tuple[int, ...]
    """Places in the batch."""
    expired: tuple[int, ...]
    """Places in the cache."""


def sets_of(cached: Sequence[Hashable], batch: Sequence[Hashable]) -> Sets:
    """Compare the ids of cached patches with those of a batch; ids of each are distinct."""
    places = {one: place for place, one in enumerate(cached)}
    common = tuple((place, places[one]) for place, one in enumerate(batch) if one in places)
    stayed = {place for _, place in common}
    new = tuple(place for place, one in enumerate(batch) if one not in places)
    return Sets(common, new, tuple(place for place in range(len(cached)) if place not in stayed))


@dataclass(frozen=True, eq=False)
class Saved:
    """Cached tensors of one block, for a batch (`Tree`)."""

    ids: tuple[PatchId, ...]
    inputs: Tree
    """Inputs at the step that computed the outputs."""
    outputs: Tree
    inner: Tree
    """Values within the block that neighbours or attention read (§5.1)."""
    in_a_row: Ints
    """(P,): reuses since the block was computed."""
    steps: Ints
    """(P,): last step of each patch, reused or computed."""


@dataclass(eq=False)
class PassCache:
    """What the blocks keep of one pass of a row; it lives with the row and leaves with it.

    Rows of one batch share the tensors of `Saved`. The tensors of a row that left are freed when the others take their
    next step, or at once where it was the last.
    """

    blocks: dict[int, Saved] = field(default_factory=dict)
    serial: int = field(default_factory=lambda: next(_SERIALS))


class Places:
    """Some patches of a batch, and their rows in its tensors.

    The length of a tensor tells what its rows are. Images are packed only where a batch has several shapes, and at most
    one of these is a single square. So there are more squares than images.
    """

    def __init__(self, ids: Sequence[PatchId], places: Ints) -> None:
        """ids: of all patches; places: of these among them."""
        self._ids, self._places = ids, places
        self._rows: dict[int, Tensor] = {}

    def of(self, values: Tensor) -> Tensor:
        """Return the rows of these patches in a tensor with one row for each patch of the batch, or for each square."""
        if len(values) not in self._rows:
            rows = self._places if len(values) == len(self._ids) else self._squares()
            self._rows[len(values)] = torch.from_numpy(rows).to(values.device)
        return self._rows[len(values)]

    def _squares(self) -> Ints:
        squares = squares_of(self._ids)
        own, ends = squares[self._places], np.cumsum(squares)
        return np.repeat(ends[self._places] - np.cumsum(own), own) + np.arange(own.sum())


def squares_of(ids: Sequence[PatchId]) -> Ints:
    """Return (P,), the squares of each patch; 1 for an image that is not cut."""
    return np.array([max(squares, 1) for _, _, squares, _ in ids], dtype=np.int64)


def gather(blocks: Iterable[Saved | None], ids: tuple[PatchId, ...]) -> tuple[Saved | None, Ints]:
    """Return what the cache has of these patches, in their order, and the places of those that it has (Common).

    blocks: what the passes of the batch keep, in any order. Rows of the result for New patches have no meaning.
    """
    distinct = {id(one): one for one in blocks if one is not None}
    found = list(distinct.values())
    if len(found) == 1 and found[0].ids == ids:
        return found[0], np.arange(len(ids))
    sets = [(one, sets_of(one.ids, ids).common) for one in found]
    sets = [(one, common) for one, common in sets if common]
    if not sets:
        return None, np.array([], dtype=np.int64)
    in_a_row, steps = np.zeros(len(ids), dtype=np.int64), np.full(len(ids), -1, dtype=np.int64)
    moves: list[tuple[Places, Places]] = []
    for one, common in sets:
        here, there = np.array(common, dtype=np.int64).T
        in_a_row[here], steps[here] = one.in_a_row[there], one.steps[there]
        moves.append((Places(ids, here), Places(one.ids, there)))

    def assembled(*parts: Tensor) -> Tensor:
        single = len(parts[0]) == len(sets[0][0].ids)
        whole = parts[0].new_zeros(len(ids) if single else squares_of(ids).sum(), *parts[0].shape[1:])
        for part, (to, source) in zip(parts, moves, strict=True):
            whole.index_copy_(0, to.of(whole), part.index_select(0, source.of(part)))
        return whole

    kept = [one for one, _ in sets]
    inputs, outputs, inner = (
        map_tree(assembled, *(getattr(one, name) for one in kept)) for name in ("inputs", "outputs", "inner")
    )
    return Saved(ids, inputs, outputs, inner, in_a_row, steps), np.flatnonzero(steps >= 0)


def map_tree(function: Callable[..., Tensor], *trees: Tree) -> Tree:
    """Apply a function to the tensors at each place of equal trees."""
    if isinstance(trees[0], Tensor):
        return function(*trees)
    if isinstance(trees[0], tuple):
        return tuple(map_tree(function, *each) for each in zip(*trees, strict=True))
    return trees[0]


def select(tree: Tree, places: Places) -> Tree:
    """Return the rows of these patches in each tensor."""
    return map_tree(lambda values: values.index_select(0, places.of(values)), tree)


def replace_rows(tree: Tree, places: Places, rows: Tree) -> Tree:
    """Return a copy of each tensor with the rows of these patches replaced."""
    return map_tree(lambda whole, own: whole.index_copy(0, places.of(whole), own.to(whole.dtype)), tree, rows)


def changes(now: Tree, before: Tree, ids: Sequence[PatchId]) -> npt.NDArray[np.float32]:
    """Return (P,), the change of each patch: squared difference as a share of the square of `now`, over all tensors."""

    def by_patch(values: Tensor) -> Tensor:
        sums = values.float().square().flatten(1).sum(1)
        if len(sums) == len(ids):
            return sums
        return torch.stack([each.sum() for each in torch.split(sums, squares_of(ids).tolist())])

    moved = sum(by_patch(one.float() - other.float()) for one, other in zip(now, before, strict=True))
    size = sum(by_patch(one) for one in now)
    found: npt.NDArray[np.float32] = (torch.as_tensor(moved) / torch.as_tensor(size)).cpu().numpy()
    return found
