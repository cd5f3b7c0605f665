"""Capacity of a fleet: groups of equally fast workers, their splits between models, and the workload that a split
sustains."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from services.global_monitor.allocation.workload import Workload

SPLITS = 100_000
"""Largest number of splits that are tried one by one."""
CLOSE = 1e-9
"""Relative tolerance, so that rounding does not make a workload infeasible that fits exactly."""


@dataclass(frozen=True, slots=True)
class Group:
    """Equally fast workers: P_large and P_small, full generations per second of each worker."""

    count: int
    large: float
    small: float


Split = tuple[int, ...]
"""Number of workers per group that run the large model."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Full generations per second."""

    large: float
    small: float


def capacity(groups: Sequence[Group], split: Split) -> Capacity:
    return Capacity(
        large=sum(n * group.large for n, group in zip(split, groups, strict=True)),
        small=sum((group.count - n) * group.small for n, group in zip(split, groups, strict=True)),
    )


def feasible(has: Capacity, work: Workload) -> bool:
    """Return whether the capacity satisfies eqs. 7 and 9, and small workers can do the work that only small models may
    do."""
    return (
        has.large * (1 + CLOSE) >= work.miss
        and has.small * (1 + CLOSE) >= work.small
        and (has.large + has.small) * (1 + CLOSE) >= work.total
    )


def sustained(has: Capacity, work: Workload, *, large_refines: bool) -> float:
    """Return the largest multiple of this workload that can be done; inf without work."""
    limits = [_ratio(has.large, work.miss), _ratio(has.small, work.small)]
    if large_refines:
        limits.append(_ratio(has.large + has.small, work.total))
    else:
        limits.append(_ratio(has.small, work.hit + work.small))
    return min(limits)


def _ratio(has: float, wanted: float) -> float:
    return has / wanted if wanted > 0 else math.inf


def splits(groups: Sequence[Group], total: int | None = None) -> Iterator[Split]:
    """Yield every way to split the groups; if `total` is given, only those with `total` large workers.

    With more than SPLITS ways, yield only splits that give the large model to the workers that are best at it: exact
    for one group, good for many.
    """
    if math.prod(group.count + 1 for group in groups) <= SPLITS:
        for split in itertools.product(*(range(group.count + 1) for group in groups)):
            if total is None or sum(split) == total:
                yield split
        return
    for n in range(sum(group.count for group in groups) + 1) if total is None else (total,):
        yield _best_at_large(groups, n)


def _best_at_large(groups: Sequence[Group], total: int) -> Split:
    order = sorted(range(len(groups)), key=lambda at: -_ratio(groups[at].large, groups[at].small))
    split = [0] * len(groups)
    for at in order:
        split[at] = min(groups[at].count, total - sum(split))
    return tuple(split)
