"""Payback of a switch: a worker that changes its model generates nothing during the switch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from services.global_monitor.allocation.fleet import Capacity
from services.global_monitor.allocation.workload import Workload
from services.global_monitor.roster import Worker


@dataclass(frozen=True, slots=True)
class Stage:
    """The capacity during some seconds, and whether large models refine hits in that time."""

    seconds: float
    has: Capacity
    large_refines: bool


def switch_s(took_s: Sequence[float], workers: Sequence[Worker], wanted: Mapping[str, str]) -> float:
    """Return the seconds of a switch: the median of the last ones; before any switch, the time that a full batch takes
    to finish."""
    if took_s:
        return median(took_s)
    drains = [
        worker.max_rows / rate
        for worker in workers
        if wanted[worker.name] != worker.model and (rate := worker.rates.get(worker.model, 0.0))
    ]
    return max(drains, default=0.0)


def expected_s(wanted_s: float, period_s: float, catch_up_s: float) -> float:
    """Return the seconds for which a state is expected to last, after decisions have wanted it for `wanted_s` seconds.

    A demand is expected to last as long as it has lasted, one period at first. No switch may need more than
    `catch_up_s` to pay back (or one period, if that is longer): the waiting work is due by then.
    """
    return min(wanted_s + period_s, max(catch_up_s, period_s))


def pays_back(before: Stage, during: Stage, after: Stage, work: Workload, *, better: bool) -> bool:
    """Return whether a switch gets more work done within the seconds of `before`, or as much work in a `better` way.

    before: those seconds (`expected_s`) without a switch; during, after: the switch, and the seconds left after it.
    """
    if during.seconds >= before.seconds:
        return False
    kept, switched = done((before,), work), done((during, after), work)
    return switched >= kept * (1 - 1e-9) if better else switched > kept * (1 + 1e-9)


def done(stages: tuple[Stage, ...], work: Workload) -> float:
    """Return the full generations of `work` that are done, an equal share of each kind. Work left undone in one stage
    may be done in the next."""
    seconds = sum(stage.seconds for stage in stages)
    large = sum(stage.seconds * stage.has.large for stage in stages)
    small = sum(stage.seconds * stage.has.small for stage in stages)
    refining = sum(stage.seconds * stage.has.large for stage in stages if stage.large_refines)
    of_large = refining / large if large else 0.0  # large models refine hits with the capacity that misses leave
    limits = ((large, work.miss), (small, work.small), (small + refining, work.hit + work.small + of_large * work.miss))
    share = min((has / (wanted * seconds) for has, wanted in limits if wanted), default=0.0)
    return min(share, 1.0) * work.total * seconds
