"""The target of the heuristic: the small model and the number of large workers, in both modes and their corner cases
(MoDM §5.3, Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from services.global_monitor.allocation.fleet import CLOSE, Group, capacity, splits, sustained
from services.global_monitor.allocation.quality_mode import most_large
from services.global_monitor.allocation.throughput_mode import balanced
from services.global_monitor.allocation.workload import Workload

Mode = Literal["quality", "throughput"]
BACK_UP = 1.15
"""Factor on the demand that a better small model than the present one must carry, else the two would alternate."""

Fleet = Mapping[str, Sequence[Group]]
"""The same workers once per small model, best model first; empty: only the large model is served."""


@dataclass(frozen=True, slots=True)
class Target:
    """The heuristic's target (the start of Algorithm 1), before the PID."""

    large: float
    """N_large, not rounded; within `least` … `most`."""
    small: str
    """The model of the other workers; empty: no small model is served."""
    mode: Mode
    """The mode in force: if no split meets the demand, quality mode falls back to throughput mode's split."""
    least: int
    most: int
    why: str


def allocate(workers: int, fleet: Fleet, work: Workload, mode: Mode, *, small: str = "", large: float = 0.0) -> Target:
    """Return the target for this many workers; small and large: the present small model and number of large workers."""
    if not fleet or workers == 0:
        return _all_large(workers, "", mode, "no small model is served")
    small = small if small in fleet else next(iter(fleet))
    if workers == 1:
        return _all_large(workers, small, mode, "the only worker runs the large model")
    if mode == "quality":
        found = _quality(workers, fleet, work, small)
        if found is not None:
            return found
        return _balanced(workers, fleet, work, _fastest(fleet), large, "no split meets the demand")
    return _throughput(workers, fleet, work, small, large)


def _all_large(workers: int, small: str, mode: Mode, why: str) -> Target:
    return Target(workers, small, mode, min(workers, 1), workers, why)


def _quality(workers: int, fleet: Fleet, work: Workload, now: str) -> Target | None:
    """Return quality mode's target with the best small model that meets the demand; None when none does."""
    for small, asked in _candidates(fleet, work, now):
        split = most_large(fleet[small], asked)
        if split is not None:
            # BACK_UP only decides whether the model is taken; its split is eq. 10's, without that margin
            split = most_large(fleet[small], work) or split
            why = f"the most large models that meet the demand with {small}"
            most = workers - 1 if work.small else workers
            return Target(sum(split), small, "quality", 1, most, why)
    return None


def _throughput(workers: int, fleet: Fleet, work: Workload, now: str, large: float) -> Target:
    """Return throughput mode's target with the best small model that meets the demand, else with the fastest."""
    if not work.total:
        return Target(min(max(large, 1), workers), now, "throughput", 1, workers, "there is no demand")
    for small, asked in _candidates(fleet, work, now):
        if _carries(workers, fleet[small], asked):
            return _balanced(workers, fleet, work, small, large, f"large workers in balance with {small}")
    return _balanced(workers, fleet, work, _fastest(fleet), large, "no split meets the demand")


def _balanced(workers: int, fleet: Fleet, work: Workload, small: str, large: float, why: str) -> Target:
    """Apply eq. 12 within its bounds: at least one large worker always, at least one small worker when there are
    hits."""
    most = workers - 1 if work.hit + work.small > 0 else workers
    wanted = balanced(fleet[small], work)
    share = min(max(large if wanted is None else wanted, 1), most)
    return Target(_whole_side(fleet[small], work, share, most), small, "throughput", 1, most, why)


def _whole_side(groups: Sequence[Group], work: Workload, large: float, most: int) -> float:
    """Return `large`, or the whole number on its other side where rounding leaves work undone and the other number does
    more. Example: rounding 1.3 large workers down to 1 may cost more work than running 14 small workers instead of
    15."""

    def carried(count: int) -> float:
        shares = (sustained(capacity(groups, split), work, large_refines=False) for split in splits(groups, count))
        return max(shares, default=0.0)

    nearest = math.floor(large + 0.5)
    other = nearest + 1 if large > nearest else nearest - 1
    if not 1 <= other <= most or (done := carried(nearest)) >= 1:
        return large
    return other if carried(other) > done * (1 + CLOSE) else large


def _candidates(fleet: Fleet, work: Workload, now: str) -> list[tuple[str, Workload]]:
    """Return the small models, best first, each with the workload that it must be able to carry."""
    order = list(fleet)
    return [(one, work.times(BACK_UP) if order.index(one) < order.index(now) else work) for one in order]


def _carries(workers: int, groups: Sequence[Group], work: Workload) -> bool:
    """Return whether some split can do all the work, with hits on small models alone."""
    able = (split for split in splits(groups) if 1 <= sum(split) < workers)
    return any(sustained(capacity(groups, split), work, large_refines=False) >= 1 for split in able)


def _fastest(fleet: Fleet) -> str:
    return max(fleet, key=lambda small: sum(group.count * group.small for group in fleet[small]))
