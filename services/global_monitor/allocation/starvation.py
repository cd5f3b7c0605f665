"""Turns: a worker goes over for a while to a lane that waits although no worker runs its model (design §3: nothing is
ever stranded)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

AMORTISED = 4
"""Work waits, and a turn that others wait for lasts, for so many switches' time: these cost a third of it at most."""

Models = Mapping[str, str]
"""Worker → model."""
Waits = Mapping[str, float]
"""Model → seconds that the oldest job in its lane has waited; a lane in which nothing waits is not there."""


@dataclass(frozen=True, slots=True)
class WorkerSlot:
    """How a worker stands."""

    name: str
    home: str
    """The model that the allocation wants it to run."""
    told: str
    """The model that it was told to run, another one during a turn."""
    since: float | None
    """When it began to; None: it is switching."""
    able: frozenset[str]
    """Models that it can run."""


def turns(stands: Sequence[WorkerSlot], waits: Waits, bound_s: float, at: float, large: str) -> dict[str, str]:
    """Worker → model of those that are not to run their home's.

    Work that has waited for `bound_s` in a lane whose model nobody runs gets a worker: one whose own model another runs
    too, or whose own lane is empty, or that has been at it for `bound_s`. It goes home when the lane is empty, when
    another worker runs that model, or after `bound_s` when other work has waited as long; lanes that always have work
    share a worker alone in turns of that length.
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
    """Whether a worker's turn goes on."""
    arrived = (other.told for other in stands if other.home == other.told and other.since is not None)
    if one.told not in one.able or one.told in arrived:
        return False
    if one.since is None:  # let it arrive
        return True
    others_wait = _starving({other.name: other.told for other in stands}, waits, bound_s)
    return one.told in waits and not (others_wait and at - one.since >= bound_s)


def _may_go(one: WorkerSlot, model: str, models: Models, waits: Waits, bound_s: float, at: float) -> bool:
    """Whether a worker that is at home, or comes from a turn, may begin one with this model."""
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
    """Whether another worker runs its home's model."""
    return any(model == one.home for name, model in models.items() if name != one.name)


def _cost(one: WorkerSlot, models: Models, waits: Waits, large: str) -> tuple[bool, float, bool, str]:
    """Of leaving home: whose lane others serve first, then whose work has waited least, a small one's first."""
    return not _shared(one, models), waits.get(one.home, 0.0), one.home == large, one.name
