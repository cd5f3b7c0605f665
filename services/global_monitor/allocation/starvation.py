"""Turns: send a worker for a while to a lane that waits without a worker of its model (docs/architecture.md,
Services)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

AMORTISED = 4
"""Minimum length of a wait before a turn, and of a turn that other lanes wait for, in units of the switch time.
Switching then takes at most a third of the time."""

Models = Mapping[str, str]
"""Worker → model."""
Waits = Mapping[str, float]
"""Model → seconds that the oldest job in its lane has waited; lanes without waiting jobs are left out."""


@dataclass(frozen=True, slots=True)
class WorkerSlot:
    """A worker, the model that it runs, and the model that it should run."""

    name: str
    home: str
    """The model that the allocation assigns to the worker."""
    told: str
    """The model last published for the worker; during a turn not `home`."""
    since: float | None
    """Time since which the worker has run `told`; None while the worker switches."""
    able: frozenset[str]
    """Models that the worker can run."""


def turns(stands: Sequence[WorkerSlot], waits: Waits, bound_s: float, at: float, large: str) -> dict[str, str]:
    """Return worker → model of the workers that should run another model than their home's.

    Work that has waited `bound_s` in a lane whose model no worker runs gets a worker. That may be a worker whose home
    model another worker runs too, whose home lane is empty, or that has run its model for `bound_s`.

    The worker goes home when the lane is empty, or when another worker runs that model at home. It also goes home after
    `bound_s` when other work has waited as long. A single worker thus serves several busy lanes in turns of that
    length.
    """
    away = {one.name: one.told for one in stands if one.told != one.home and _stays(one, stands, waits, bound_s, at)}
    models = {one.name: away.get(one.name, one.home) for one in stands}
    for model in sorted(_starving(models, waits, bound_s), key=lambda one: -waits[one]):
        able = [one for one in stands if one.name not in away and _may_go(one, model, models, waits, bound_s, at)]
        if able and model not in models.values():
            goes = min(able, key=lambda one: _cost(one, models, waits, large))
            away[goes.name] = models[goes.name] = model
    return away


def _starving(models: Models, waits: Waits, bound_s: float) -> list[str]:
    return [model for model, waited_s in waits.items() if waited_s >= bound_s and model not in models.values()]


def _stays(one: WorkerSlot, stands: Sequence[WorkerSlot], waits: Waits, bound_s: float, at: float) -> bool:
    """Return whether a worker's turn continues."""
    arrived = (other.told for other in stands if other.home == other.told and other.since is not None)
    if one.told not in one.able or one.told in arrived:
        return False
    if one.since is None:  # let it finish switching first
        return True
    others_wait = _starving({other.name: other.told for other in stands}, waits, bound_s)
    return one.told in waits and not (others_wait and at - one.since >= bound_s)


def _may_go(one: WorkerSlot, model: str, models: Models, waits: Waits, bound_s: float, at: float) -> bool:
    """Return whether a worker at home or at the end of a turn may begin a turn with this model."""
    if model not in one.able or one.since is None:
        return False
    if one.told != one.home and model == one.told:  # its turn is over
        return False
    if _shared(one, models) or one.home not in waits:
        return True
    if one.told != one.home:
        return waits[model] > waits[one.home]
    return at - one.since >= bound_s


def _shared(one: WorkerSlot, models: Models) -> bool:
    """Return whether another worker runs its home's model."""
    return any(model == one.home for name, model in models.items() if name != one.name)


def _cost(one: WorkerSlot, models: Models, waits: Waits, large: str) -> tuple[bool, float, bool, str]:
    """Sort key for leaving home; the worker with the smallest key goes first: lane served by others, then shortest wait
    at home, then small home model."""
    return not _shared(one, models), waits.get(one.home, 0.0), one.home == large, one.name
