"""What an assignment means for one worker: which lanes it takes from, with which models it draws, and what it takes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from shared.messages import WorkersAssigned, lane_of, refine_lane
from shared.types import Plan, PlanSource


class Weights(Protocol):
    """What a plan must know of a model card."""

    @property
    def weights_hash(self) -> str: ...


class Here(Protocol):
    """A model that is loaded here."""

    @property
    def card(self) -> Weights: ...


@dataclass(frozen=True, slots=True)
class Duty:
    """The worker's model, and what it must know of the others."""

    model: str
    assigned: frozenset[str]
    """Models that some worker runs."""
    mode: str = "quality"
    """`quality` or `throughput` (MoDM §5.3)."""

    def after(self, fact: WorkersAssigned, worker: str) -> Duty:
        """As the monitor wants it; a worker that it does not name keeps its model."""
        models: Mapping[str, str] = dict(fact.assignments)
        own = models.get(worker, self.model)
        return Duty(own, frozenset({own, *models.values()}), fact.mode)

    def alone(self) -> Duty:
        """As if nobody else were there: which models others run, nobody says any more."""
        return Duty(self.model, frozenset({self.model}), self.mode)

    def with_model(self, model: str) -> Duty:
        return Duty(model, self.assigned | {model}, self.mode)


def lanes(duty: Duty, served: Sequence[str], here: Collection[str]) -> tuple[str, ...]:
    """The lanes that it takes from, in their order (design §3, Lanes). served: the large model first; here: loaded.

    After its own lane and `refine`, where that is its to take, come the lanes of models that nobody runs and that are
    loaded here: what waits there is never stranded by a switch. With one model served nobody else may refine, and all
    waits in its own lane.
    """
    if len(served) == 1:
        return (lane_of(duty.model),)
    refine = (refine_lane(),) if _refines(duty, served) else ()
    return (lane_of(duty.model), *refine, *(lane_of(model) for model in _nobodys(duty, served, here)))


def used(duty: Duty, served: Sequence[str], here: Collection[str]) -> tuple[str, ...]:
    """The models that this worker draws with, the large one first: its own, and those that nobody runs."""
    models = {duty.model, *_nobodys(duty, served, here)}
    return tuple(model for model in served if model in models)


def preferred(duty: Duty, served: Sequence[str], here: Collection[str]) -> tuple[str, ...]:
    """Which of them it draws with what several may draw, an image hit.

    Its own; in throughput mode, while no worker is small, first the small ones that are loaded here: a worker alone is
    of both kinds in turns.
    """
    alone = duty.mode == "throughput" and duty.model == served[0] and not _small_runs(duty, served)
    return (*(_nobodys(duty, served, here) if alone else ()), duty.model)


def taken_by(plan: Plan, families: Mapping[str, Here], preferred: Collection[str] = ()) -> Plan:
    """The plan with a model that is here and that model's own k, fixed from now on (MoDM §4.2).

    An image hit is drawn by the cheapest of the `preferred` models that may, else by the cheapest that is here; a
    latent hit whose model is not here by its fallback. Unchanged where nobody here may draw it.
    """
    if plan.source is PlanSource.LATENT and plan.model not in families and plan.fallback is not None:
        other = taken_by(plan.fallback, families, preferred)
        return replace(other, candidates=plan.candidates) if other.model in families else plan
    here = [one for one in plan.may_run if one.model in families]
    if plan.source is not PlanSource.IMAGE or not here:
        return plan
    able = next((one for one in here if one.model in preferred), here[0])
    weights_hash = families[able.model].card.weights_hash
    return replace(plan, model=able.model, start_step=able.start_step, weights_hash=weights_hash)


def handed_on(plan: Plan, assigned: Collection[str] | None) -> Plan | None:
    """A plan that only models which are not here may run, by the first of them that some worker runs, so that it waits
    for nobody who may never come; None: it becomes a miss, but not where that would wait for the same model.

    assigned: the models that some worker runs; None: any may be.
    """
    others = [one for one in plan.may_run if assigned is None or one.model in assigned]
    others = others or [one for one in plan.may_run if one.model == (plan.miss_model or plan.model)]
    if others:
        return replace(plan, model=others[0].model, start_step=others[0].start_step)
    return None if plan.source is PlanSource.IMAGE else plan


def _refines(duty: Duty, served: Sequence[str]) -> bool:
    """Large models leave hits to small ones in throughput mode, while there are any (MoDM §5.3.2)."""
    return duty.model != served[0] or duty.mode == "quality" or not _small_runs(duty, served)


def _small_runs(duty: Duty, served: Sequence[str]) -> bool:
    return not duty.assigned.isdisjoint(served[1:])


def _nobodys(duty: Duty, served: Sequence[str], here: Collection[str]) -> tuple[str, ...]:
    return tuple(model for model in served if model not in duty.assigned and model in here)
