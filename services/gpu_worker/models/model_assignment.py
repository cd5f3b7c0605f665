"""What an assignment means for one worker: which lanes it takes from, and with which models it draws."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from shared.domain.messages import WorkersAssigned, lane_of, refine_lane


@dataclass(frozen=True, slots=True)
class ModelAssignment:
    """The worker's model, and what it must know of the others."""

    model: str
    assigned: frozenset[str]
    """Models that some worker runs."""
    mode: str = "quality"
    """`quality` or `throughput` (MoDM §5.3)."""

    def after(self, fact: WorkersAssigned, worker: str) -> ModelAssignment:
        """As the monitor wants it; a worker that it does not name keeps its model."""
        models: Mapping[str, str] = dict(fact.assignments)
        own = models.get(worker, self.model)
        return ModelAssignment(own, frozenset({own, *models.values()}), fact.mode)

    def alone(self) -> ModelAssignment:
        """As if nobody else were there: which models others run, nobody says any more."""
        return ModelAssignment(self.model, frozenset({self.model}), self.mode)

    def with_model(self, model: str) -> ModelAssignment:
        return ModelAssignment(model, self.assigned | {model}, self.mode)


def lanes(duty: ModelAssignment, served: Sequence[str], here: Collection[str]) -> tuple[str, ...]:
    """The lanes that it takes from, in their order (design §3, Lanes). served: the large model first; here: loaded.

    After its own lane and `refine`, where that is its to take, come the lanes of models that nobody runs and that are
    loaded here: what waits there is never stranded by a switch. With one model served nobody else may refine, and all
    waits in its own lane.
    """
    if len(served) == 1:
        return (lane_of(duty.model),)
    refine = (refine_lane(),) if _refines(duty, served) else ()
    return (lane_of(duty.model), *refine, *(lane_of(model) for model in _nobodys(duty, served, here)))


def used(duty: ModelAssignment, served: Sequence[str], here: Collection[str]) -> tuple[str, ...]:
    """The models that this worker draws with, the large one first: its own, and those that nobody runs."""
    models = {duty.model, *_nobodys(duty, served, here)}
    return tuple(model for model in served if model in models)


def preferred(duty: ModelAssignment, served: Sequence[str], here: Collection[str]) -> tuple[str, ...]:
    """Which of them it draws with what several may draw, an image hit.

    Its own; in throughput mode, while no worker is small, first the small ones that are loaded here: a worker alone is
    of both kinds in turns.
    """
    alone = duty.mode == "throughput" and duty.model == served[0] and not _small_runs(duty, served)
    return (*(_nobodys(duty, served, here) if alone else ()), duty.model)


def _refines(duty: ModelAssignment, served: Sequence[str]) -> bool:
    """Large models leave hits to small ones in throughput mode, while there are any (MoDM §5.3.2)."""
    return duty.model != served[0] or duty.mode == "quality" or not _small_runs(duty, served)


def _small_runs(duty: ModelAssignment, served: Sequence[str]) -> bool:
    return not duty.assigned.isdisjoint(served[1:])


def _nobodys(duty: ModelAssignment, served: Sequence[str], here: Collection[str]) -> tuple[str, ...]:
    return tuple(model for model in served if model not in duty.assigned and model in here)
