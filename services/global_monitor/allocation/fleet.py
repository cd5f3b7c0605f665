"""Workers as numbers: how many are equally fast, what a split of them gets done, and whether that is enough."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from services.global_monitor.allocation.workload import Workload

SPLITS = 100_000
"""More ways than this to split a fleet are not tried one by one."""
CLOSE = 1e-9
"""Rounding must not make a workload infeasible that fits exactly."""


@dataclass(frozen=True, slots=True)
class Group:
    """Equally fast workers: P_large and P_small, full generations per second of each."""

    count: int
    large: float
    small: float


Split = tuple[int, ...]
"""How many of each group run the large model."""


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
    """Eqs. 7 and 9, and that what only small models may draw is done by them."""
    return (
        has.large * (1 + CLOSE) >= work.miss
        and has.small * (1 + CLOSE) >= work.small
        and (has.large + has.small) * (1 + CLOSE) >= work.total
    )


def sustained(has: Capacity, work: Workload, *, large_refines: bool) -> float:
    """The multiple of this workload that is still done; inf without work."""
    limits = [_ratio(has.large, work.miss), _ratio(has.small, work.small)]
    if large_refines:
        limits.append(_ratio(has.large + has.small, work.total))
    else:
        limits.append(_ratio(has.small, work.hit + work.small))
    return min(limits)


def _ratio(has: float, wanted: float) -> float:
    return has / wanted if wanted > 0 else math.inf


def splits(groups: Sequence[Group], total: int | None = None) -> Iterator[Split]:
    """Every way to split the groups, with `total` large workers where that is given.

    Of a fleet with more than SPLITS ways only those that turn to the large model whoever is best at it: the exact
    answer for one group, a good one for many.
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
