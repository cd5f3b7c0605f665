"""The state of workers in virtual time: requests, the rows in a batch, each worker, and served requests."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.gpu_worker.models.model_assignment import ModelAssignment
from services.replay.simulated.pace import STEPS
from shared.domain.types import Plan, PlanSource


@dataclass(frozen=True, slots=True)
class Request:
    """`plan` of `steps` steps."""

    number: int
    at: float
    plan: Plan
    steps: int = STEPS

    @property
    def left(self) -> int:
        """Steps of the model that draws it, after the start."""
        return self.plan.run_steps(self.steps) - self.plan.start_step

    @property
    def is_hit(self) -> bool:
        return self.plan.source is not PlanSource.NOISE


@dataclass(slots=True)
class Row:
    """A request in a worker's hands, with the plan as it is run; the scheduler reads it as it reads a task."""

    request: Request
    lane: str
    arrived: int
    joined_at: float = -1.0
    id: str = ""
    priority: int = 0
    deadline_at: float | None = None
    drop_if_late: bool = False
    alone: bool = False


@dataclass(slots=True)
class Worker:
    """One batch; between two changes of its rows all steps take equally long."""

    name: str
    duty: ModelAssignment
    wanted: ModelAssignment
    lanes: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    """That draw here …"""
    first: tuple[str, ...] = ()
    """… and which of them what several may."""
    rows: dict[str, list[tuple[int, int, Row]]] = field(default_factory=dict)
    """By model, a heap of (the worker's step after which it ends, number, row)."""
    ran: int = 0
    """Steps so far."""
    in_hand: int = 0
    begun_at: float = 0.0
    step_s: float = 0.0
    planned: int = 0
    """Steps of the present stretch."""
    stretch: int = 0
    """Its number: events of an earlier one are void."""
    running: bool = False
    shut: bool = False
    """While pictures are decoded, and while it looks through its lanes."""
    busy_s: float = 0.0
    row_s: float = 0.0
    """Seconds times rows."""

    @property
    def switches(self) -> bool:
        """It is to draw with another model, and takes nothing new before."""
        return self.wanted.model != self.duty.model


@dataclass(frozen=True, slots=True)
class Done:
    """A request that was served."""

    request: Request
    at: float
    worker: str
    model: str
    steps_run: int
    joined_at: float = 0.0

    @property
    def seconds(self) -> float:
        return self.at - self.request.at
