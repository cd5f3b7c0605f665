"""The effect of an assignment on one worker: the lanes that it consumes, and the models that it runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from shared.domain.messages import WorkersAssigned, lane_of, refine_lane


@dataclass(frozen=True, slots=True)
class ModelAssignment:
    """The worker's model, and what the worker must know of the other workers' models."""

    model: str
    assigned: frozenset[str]
    """Models that some worker runs."""
    mode: str = "quality"
    """`quality` or `throughput` (MoDM §5.3)."""

    def after(self, fact: WorkersAssigned, worker: str) -> ModelAssignment:
        """Return the assignment after a monitor's event; a worker that the event does not name keeps its model."""
        models: Mapping[str, str] = dict(fact.assignments)
        own = models.get(worker, self.model)
        return ModelAssignment(own, frozenset({own, *models.values()}), fact.mode)

    def alone(self) -> ModelAssignment:
        """Return the assignment without the other workers: while the monitor is away, their models are unknown."""
        return ModelAssignment(self.model, frozenset({self.model}), self.mode)

    def with_model(self, model: str) -> ModelAssignment:
        return ModelAssignment(model, self.assigned | {model}, self.mode)


def lanes(duty: ModelAssignment, served: Sequence[str], here: Collection[str]) -> tuple[str, ...]:
    """Return the lanes that the worker consumes, in order (docs/architecture.md, Services). served: the large model
    first; here: loaded models.

    The worker's own lane comes first, then `refine` if the worker may refine. Then come the lanes of models that are
    loaded here and assigned to no worker, so that a switch never strands their tasks. With one model served there is no
    `refine`: all tasks wait in the model's lane.
    """
    if len(served) == 1:
        return (lane_of(duty.model),)
    refine = (refine_lane(),) if _refines(duty, served) else ()
    return (lane_of(duty.model), *refine, *(lane_of(model) for model in _nobodys(duty, served, here)))


def used(duty: ModelAssignment, served: Sequence[str], here: Collection[str]) -> tuple[str, ...]:
    """Return the models that this worker runs, the large one first: its own, and loaded models assigned to no
    worker."""
    models = {duty.model, *_nobodys(duty, served, here)}
    return tuple(model for model in served if model in models)


def preferred(duty: ModelAssignment, served: Sequence[str], here: Collection[str]) -> tuple[str, ...]:
    """Return the models that run plans which several models may run (image hits), in order of preference. Usually this
    is the worker's own model only. In throughput mode, while no worker runs a small model, the small models loaded here
    come first: a single worker takes both roles.
    """
    alone = duty.mode == "throughput" and duty.model == served[0] and not _small_runs(duty, served)
    return (*(_nobodys(duty, served, here) if alone else ()), duty.model)


def _refines(duty: ModelAssignment, served: Sequence[str]) -> bool:
    """Return whether the worker consumes `refine`: in throughput mode large models leave hits to small ones, while
    there are any (MoDM §5.3.2)."""
    return duty.model != served[0] or duty.mode == "quality" or not _small_runs(duty, served)


def _small_runs(duty: ModelAssignment, served: Sequence[str]) -> bool:
    return not duty.assigned.isdisjoint(served[1:])


def _nobodys(duty: ModelAssignment, served: Sequence[str], here: Collection[str]) -> tuple[str, ...]:
    return tuple(model for model in served if model not in duty.assigned and model in here)
