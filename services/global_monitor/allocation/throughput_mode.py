"""Throughput-optimised mode: misses to large models and hits to small ones, in balance (MoDM §5.3.2, eqs. 11–12)."""

from __future__ import annotations

from collections.abc import Sequence

from services.global_monitor.allocation.fleet import Group
from services.global_monitor.allocation.workload import Workload, weighted_hit


def balanced(groups: Sequence[Group], work: Workload) -> float | None:
    """Compute eq. 12: the unrounded number of large workers. None without demand, or if no worker is known to run one
    of the models.

    If workers are not equally fast, mean throughputs stand for P_large and P_small.
    """
    large_rate = sum(group.count * group.large for group in groups)
    small_rate = sum(group.count * group.small for group in groups)
    if not work.total or not large_rate or not small_rate:
        return None
    hits = weighted_hit(work.hit + work.small, large_rate, small_rate)
    return work.miss / (hits + work.miss) * sum(group.count for group in groups)
