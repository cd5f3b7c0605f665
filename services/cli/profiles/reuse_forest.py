"""The forest of `afterimage profile --reuse`: its records, its fit, and its export to arrays."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from services.gpu_worker.engine.reuse.block_cache import PatchId, Tree, changes
from shared.models.step_reuse import StepReuse

Floats = npt.NDArray[np.float64]
Measured = npt.NDArray[np.float32]
"""(n, 4): block, timestep, reuses since the block was computed, change of the block's input."""
BLOCK, TIME, REUSES, MOVED = range(4)
FALLING = [0, 0, 0, -1]
"""The more a block's input changed, the fewer votes for reuse; so each cell of the forest has one limit."""
TREES, DEPTH, LEAF = 16, 8, 20
ROWS = 100_000
"""Most records of a fit; more are sampled."""


class Recorder:
    """A policy that reuses nothing, and records the changes over 1 to `gaps` steps."""

    def __init__(self, gaps: int) -> None:
        self._gaps = gaps
        self._steps: dict[tuple[int, Sequence[PatchId]], deque[tuple[Tree, tuple[Tensor, ...]]]] = defaultdict(
            lambda: deque(maxlen=gaps)
        )
        self._rows: list[Measured] = []
        self._changed: list[npt.NDArray[np.float32]] = []

    def reused(self, block: int, timesteps: npt.ArrayLike, in_a_row: Any, changes: npt.ArrayLike) -> npt.NDArray[Any]:
        return np.zeros(len(in_a_row), dtype=bool)

    def observe(
        self, block: int, ids: Sequence[PatchId], timesteps: npt.NDArray[Any], inputs: Tree, outputs: Tree
    ) -> None:
        earlier, now = self._steps[block, ids], leaves(outputs)
        for reuses, (moved_from, changed_from) in enumerate(reversed(earlier)):
            moved = changes(inputs, moved_from, ids)
            blocks, ages = np.full_like(moved, block), np.full_like(moved, reuses)
            self._rows.append(np.stack([blocks, timesteps.astype(np.float32), ages, moved], axis=1))
            self._changed.append(changes(now, changed_from, ids))
        earlier.append((inputs, now))

    def forget(self) -> None:
        """Drop the tensors, when the images are finished."""
        self._steps.clear()

    def rows(self) -> tuple[Measured, Floats]:
        """Return the features, and the changes of the outputs, (n,)."""
        rows, changed = np.concatenate(self._rows), np.concatenate(self._changed).astype(np.float64)
        finite = np.isfinite(rows).all(axis=1) & np.isfinite(changed)
        return rows[finite], changed[finite]


def leaves(tree: Tree) -> tuple[Tensor, ...]:
    """Return the tensors of a tree in order."""
    if isinstance(tree, Tensor):
        return (tree,)
    return tuple(one for each in tree for one in leaves(each)) if isinstance(tree, tuple) else ()


def fit_reuse(rows: Measured, changed: Floats, change: float, weights_hash: str, seed: int = 0) -> StepReuse:
    """Fit a forest on whether the output changed by `change` at most, and export it; N is the most recorded."""
    small = changed <= change
    blocks, reuses = (int(rows[:, column].max()) + 1 for column in (BLOCK, REUSES))
    if small.all() or not small.any():
        limits = np.full((blocks, reuses, 1), np.inf if small.all() else -np.inf)
        return StepReuse(weights_hash, "", 0, reuses, np.array([]), limits)
    times, limits = limits_of(fit_forest(rows, small, seed), blocks, reuses)
    return StepReuse(weights_hash, "", 0, reuses, times, limits)


def fit_forest(rows: Measured, small: npt.NDArray[np.bool_], seed: int = 0) -> Any:
    """Fit scikit-learn's classifier on at most ROWS records; class True: reuse."""
    from sklearn.ensemble import RandomForestClassifier

    some = np.random.default_rng(seed).permutation(len(rows))[:ROWS]
    forest = RandomForestClassifier(
        TREES, max_depth=DEPTH, min_samples_leaf=LEAF, monotonic_cst=FALLING, random_state=seed
    )
    return forest.fit(rows[some], small[some])


def limits_of(forest: Any, blocks: int, reuses: int) -> tuple[Floats, Floats]:
    """Return the borders between timesteps, and the largest change at which the forest says reuse in each cell.

    Between two thresholds no prediction changes, and predictions fall with the input's change: a binary search over
    the thresholds of the change finds each limit.
    """
    times, moves = (_thresholds(forest, feature) for feature in (TIME, MOVED))
    inside_times, inside_moves = _inside(times), _inside(moves)
    grid = np.meshgrid(np.arange(blocks), np.arange(reuses), inside_times, indexing="ij")
    block, reused, time = (axis.ravel() for axis in grid)
    cells = np.column_stack([block, time, reused])
    low, high = np.zeros(len(cells), dtype=np.int64), np.full(len(cells), len(inside_moves), dtype=np.int64)
    while (low < high).any():  # the first of the ordered cells of the change that is computed
        middle = np.minimum((low + high) // 2, len(inside_moves) - 1)
        asked = np.column_stack([cells, inside_moves[middle]]).astype(np.float32)
        reuse, open_ = forest.predict(asked).astype(bool), low < high
        low = np.where(open_ & reuse, middle + 1, low)
        high = np.where(open_ & ~reuse, middle, high)
    limits = np.concatenate([[-np.inf], moves, [np.inf]])[low].reshape(blocks, reuses, len(inside_times))
    differs = (limits[:, :, 1:] != limits[:, :, :-1]).any(axis=(0, 1))
    return times[differs], limits[:, :, np.concatenate([differs, [True]])]


def _thresholds(forest: Any, feature: int) -> Floats:
    """Return the distinct thresholds of one feature, ascending."""
    trees = (tree.tree_ for tree in forest.estimators_)
    found = [tree.threshold[tree.feature == feature] for tree in trees]
    return np.unique(np.concatenate([*found, []]))


def _inside(borders: Floats) -> npt.NDArray[np.float32]:
    """Return a number in each interval of the borders, (borders + 1,), float32 as scikit-learn compares it."""
    if not len(borders):
        return np.zeros(1, dtype=np.float32)
    rounded = borders.astype(np.float32)
    below = np.where(rounded.astype(np.float64) > borders, np.nextafter(rounded, np.float32(-np.inf)), rounded)
    return np.append(below, np.nextafter(rounded[-1], np.float32(np.inf))).astype(np.float32)
