"""The exact search for cuts behind eqs. 2 and 13: dynamic programming over places in the chain, with Pareto sets.

A state is a place in the chain of devices, and in each backbone the layers that are already placed. Its Pareto set
holds every vector (T_0, T_0 with self-conditioning, gap) that no other one beats in all three. One vector per state,
as eqs. 7 and 8 read, is not exact: the least sum may come from a larger T_0 with a smaller gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.trainer.pipeline.costs.stage_costs import CRITERIA

Costs = Mapping[int, Sequence[NDArray[np.float64]]]
"""Replicas of a stage → for each backbone the array of `stage_costs`, in the order of the chain of devices."""
SLACK = 1e-12
"""Relative difference below which two sums count as equal."""


@dataclass(frozen=True)
class Cuts:
    """The best cuts: for each place in the chain its replicas, and the layers of each backbone before its end."""

    replicas: tuple[int, ...]
    ends: tuple[tuple[int, ...], ...]
    worst: tuple[float, ...]
    """The largest value of each criterion over the stages."""
    total: float
    """The weighted sum of `worst`."""


@dataclass(frozen=True)
class _Partial:
    """The first places of the chain, filled."""

    worst: NDArray[np.float64]
    devices: int
    ends: tuple[int, ...]
    before: _Partial | None = None
    replicas: int = 0


def best_cuts(costs: Costs, weights: Sequence[float], stages: int, devices: int) -> Cuts | None:
    """Return the cuts with the least weighted sum of the criteria; None if there are none.

    The search drops a partial solution when even the best rest, bounded for each criterion alone, is not better than
    the best solution found. The bounds come from the same recurrence, run from the end of the chain.
    """
    bounds = _bounds(costs, stages, devices)
    weight = np.asarray(weights, dtype=float)
    chains = len(next(iter(costs.values())))
    start = _Partial(np.zeros(CRITERIA), 0, (0,) * chains)
    if not np.isfinite(_vector(bounds[stages, devices], start.ends)).all():
        return None
    best = start
    for left in range(stages - 1, -1, -1):  # a first solution: at every place the step with the least bound
        best = min(_steps(best, left, devices, costs, weight, bounds, np.inf), key=lambda found: found[0])[1]
    least = float(weight @ best.worst)
    fronts: dict[tuple[int, tuple[int, ...]], list[_Partial]] = {(0, start.ends): [start]}
    for left in range(stages - 1, -1, -1):
        reached: dict[tuple[int, tuple[int, ...]], list[_Partial]] = {}
        for partial in (one for front in fronts.values() for one in front):
            for _, found in _steps(partial, left, devices, costs, weight, bounds, least * (1 - SLACK)):
                _keep(reached.setdefault((found.devices, found.ends), []), found)
        fronts = reached
    for one in (one for front in fronts.values() for one in front):
        if (total := float(weight @ one.worst)) < least:
            best, least = one, total
    return _read(best, least)


def _bounds(costs: Costs, stages: int, devices: int) -> dict[tuple[int, int], NDArray[np.float64]]:
    """Return, for stages and devices that are left, the least of each criterion from any layers on."""
    shape = tuple(array.shape[1] for array in next(iter(costs.values())))
    done = np.full((CRITERIA, *shape), np.inf)
    _vector(done, tuple(size - 1 for size in shape))[:] = 0.0
    bounds = {(0, 0): done}
    for left in range(1, stages + 1):
        for used in range(left, devices + 1):
            found = np.full((CRITERIA, *shape), np.inf)
            for replicas, arrays in costs.items():
                if (rest := bounds.get((left - 1, used - replicas))) is not None:
                    found = np.minimum(found, np.stack([_step_bound(arrays, rest, at) for at in range(CRITERIA)]))
            bounds[left, used] = found
    return bounds


def _step_bound(arrays: Sequence[NDArray[np.float64]], rest: NDArray[np.float64], at: int) -> NDArray[np.float64]:
    """Return min over the next cuts of max(stage, rest) for one criterion; the minimum separates by backbone."""
    found = rest[at]
    for axis, array in enumerate(arrays):
        moved = np.moveaxis(found, axis, 0)
        cost = array[at].reshape(*array[at].shape, *(1,) * (moved.ndim - 1))
        found = np.moveaxis(np.maximum(cost, moved[None]).min(axis=1), 0, axis)
    return found


def _steps(
    partial: _Partial,
    left: int,
    devices: int,
    costs: Costs,
    weight: NDArray[np.float64],
    bounds: Mapping[tuple[int, int], NDArray[np.float64]],
    below: float,
) -> Iterator[tuple[float, _Partial]]:
    """Yield each next place whose bound is below `below`, with the bound; `left` places come after it."""
    for replicas, arrays in costs.items():
        used = partial.devices + replicas
        if (rest := bounds.get((left, devices - used))) is None:
            continue
        worst = partial.worst.reshape(CRITERIA, *(1,) * len(arrays))
        for axis, (array, end) in enumerate(zip(arrays, partial.ends, strict=True)):
            others = [1] * len(arrays)
            others[axis] = array.shape[2]
            worst = np.maximum(worst, array[:, end].reshape(CRITERIA, *others))
        worst = np.where(np.isfinite(rest), worst, np.inf)
        possible = np.isfinite(worst).all(axis=0)
        bound = np.tensordot(weight, np.where(possible, np.maximum(worst, rest), 0.0), axes=1)
        for found in np.argwhere(possible & (bound < below)):
            ends = tuple(int(end) for end in found)
            yield float(bound[ends]), _Partial(_vector(worst, ends), used, ends, partial, replicas)


def _vector(array: NDArray[np.float64], ends: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the criteria at these cuts."""
    index: Any = (slice(None), *ends)
    return array[index]


def _keep(front: list[_Partial], one: _Partial) -> None:
    """Add a vector to a Pareto set unless another one is as good, and remove those that it beats."""
    if any((other.worst <= one.worst).all() for other in front):
        return
    front[:] = [other for other in front if not (one.worst <= other.worst).all()]
    front.append(one)


def _read(last: _Partial, total: float) -> Cuts:
    places = []
    one: _Partial | None = last
    while one is not None and one.before is not None:
        places.append(one)
        one = one.before
    places.reverse()
    return Cuts(
        tuple(one.replicas for one in places),
        tuple(one.ends for one in places),
        tuple(float(value) for value in last.worst),
        total,
    )
