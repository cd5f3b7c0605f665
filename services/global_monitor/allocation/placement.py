"""The placement: choose the given number of workers for the large model, the best at it, with the fewest switches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.global_monitor.allocation.fleet import Capacity, Group, Split, capacity, feasible, splits, sustained
from services.global_monitor.allocation.modes import Fleet
from services.global_monitor.allocation.workload import Workload
from services.global_monitor.roster import Worker

Models = Mapping[str, str]
"""Worker → model."""


@dataclass(frozen=True, slots=True)
class Band:
    """Equally fast workers, by name."""

    group: Group
    names: tuple[str, ...]


def bands(workers: Sequence[Worker], large: str, small: str) -> tuple[Band, ...]:
    """Group workers whose rates with these two models agree to two significant digits."""
    found: dict[tuple[str, str], list[Worker]] = {}
    for worker in workers:
        rates = (worker.rates.get(large, 0.0), worker.rates.get(small, 0.0))
        found.setdefault((f"{rates[0]:.2g}", f"{rates[1]:.2g}"), []).append(worker)
    return tuple(_band(members, large, small) for members in found.values())


def _band(members: Sequence[Worker], large: str, small: str) -> Band:
    def mean(model: str) -> float:
        return sum(worker.rates.get(model, 0.0) for worker in members) / len(members)

    return Band(Group(len(members), mean(large), mean(small)), tuple(worker.name for worker in members))


def fleet_of(workers: Sequence[Worker], large: str, smalls: Sequence[str]) -> Fleet:
    """Return the groups per small model, without small models that no worker is known to run."""
    found = {}
    for small in smalls:
        groups = [band.group for band in bands(workers, large, small)]
        if any(group.small for group in groups):
            found[small] = groups
    return found


def place(
    of: Sequence[Band], now: Models, total: int, large: str, small: str, work: Workload, *, large_refines: bool
) -> dict[str, str]:
    """Return worker → model with `total` large workers. Choose, of the splits that meet the demand, the split with the
    fewest switches. If no split meets the demand, choose the split that sustains most. If possible, no worker gets a
    model that it cannot run."""
    groups = [band.group for band in of]

    def worth(split: Split) -> tuple[int, bool, float, float, Split]:
        has = capacity(groups, split)
        meets, most = feasible(has, work), sustained(has, work, large_refines=large_refines)
        switches = float(-_switches(_named(of, split, now, large, small), now))
        return (-_idle(groups, split), meets, *((switches, most) if meets else (most, switches)), split)

    best = max(splits(groups, total), key=worth)
    return _named(of, best, now, large, small)


def capacity_of(workers: Sequence[Worker], models: Models, large: str) -> Capacity:
    """Return the throughput of these workers with these models."""
    rates = [(models[worker.name], worker.rates.get(models[worker.name], 0.0)) for worker in workers]
    return Capacity(
        sum(rate for model, rate in rates if model == large), sum(rate for model, rate in rates if model != large)
    )


def _named(of: Sequence[Band], split: Split, now: Models, large: str, small: str) -> dict[str, str]:
    """Name the workers of a split; those that run the large model now keep it first."""
    models: dict[str, str] = {}
    for band, count in zip(of, split, strict=True):
        order = sorted(band.names, key=lambda name: (now.get(name) != large, name))
        models |= {name: large if at < count else small for at, name in enumerate(order)}
    return models


def _idle(groups: Sequence[Group], split: Split) -> int:
    """Count workers with a model that they are not known to run."""
    return sum(
        n * (not group.large) + (group.count - n) * (not group.small)
        for n, group in zip(split, groups, strict=True)
    )  # fmt: skip


def _switches(models: Models, now: Models) -> int:
    return sum(now.get(name) != model for name, model in models.items())
