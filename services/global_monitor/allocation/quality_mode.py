"""Quality-optimised mode: as many large models as the demand allows (MoDM §5.3.1, eqs. 6–10)."""

from __future__ import annotations

from collections.abc import Sequence

from services.global_monitor.allocation.fleet import Group, Split, capacity, feasible, splits, sustained
from services.global_monitor.allocation.workload import Workload


def most_large(groups: Sequence[Group], work: Workload) -> Split | None:
    """Solve eq. 10: the split with the most large workers, at least one, that satisfies eqs. 6–9; None when there is
    none.

    Among splits with equally many large workers, return the split that could sustain most.
    """
    able = [split for split in splits(groups) if sum(split) >= 1 and feasible(capacity(groups, split), work)]
    return max(able, key=lambda split: (sum(split), _spare(groups, split, work), split), default=None)


def _spare(groups: Sequence[Group], split: Split, work: Workload) -> float:
    return sustained(capacity(groups, split), work, large_refines=True)
