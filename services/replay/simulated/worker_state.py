"""State of workers in virtual time: requests, rows of a batch, workers, and served requests."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.gpu_worker.models.model_assignment import ModelAssignment
from services.replay.simulated.pace import STEPS
from shared.domain.types import Plan, PlanSource


@dataclass(frozen=True, slots=True)
class Request:
    """One request: arrival `at` (seconds of virtual time), and a plan of `steps` steps."""

    number: int
    at: float
    plan: Plan
    steps: int = STEPS

    @property
    def left(self) -> int:
        """Steps left for the model after the plan's start step."""
        return self.plan.run_steps(self.steps) - self.plan.start_step

    @property
    def is_hit(self) -> bool:
        return self.plan.source is not PlanSource.NOISE


@dataclass(slots=True)
class Row:
    """A request on a lane or in a worker's batch, with its final plan; the scheduler reads it like a task."""

    request: Request
    lane: str
    arrived: int
    joined_at: float = -1.0
    id: str = ""
    frames: int = 1
    pixels: int = 0
    priority: int = 0
    deadline_at: float | None = None
    drop_if_late: bool = False
    alone: bool = False

    @property
    def model(self) -> str:
        return self.request.plan.model


@dataclass(slots=True)
class Worker:
    """One worker with one batch. Between two changes of its rows all steps take equally long."""

    name: str
    duty: ModelAssignment
    wanted: ModelAssignment
    lanes: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    """Models that this worker generates with."""
    first: tuple[str, ...] = ()
    """Those of `models` that this worker prefers for a request that several models may serve."""
    rows: dict[str, list[tuple[int, int, Row]]] = field(default_factory=dict)
    """Heap for each model of (the worker's step after which the row ends, request number, row)."""
    ran: int = 0
    """Steps run so far."""
    in_hand: int = 0
    begun_at: float = 0.0
    step_s: float = 0.0
    planned: int = 0
    """Steps planned until the batch changes next."""
    stretch: int = 0
    """Number of the present stretch of steps; events of earlier stretches are ignored."""
    running: bool = False
    shut: bool = False
    """True while images are decoded, and while the worker takes rows from its lanes."""
    busy_s: float = 0.0
    row_s: float = 0.0
    """Busy seconds times rows."""

    @property
    def switches(self) -> bool:
        """Return whether the worker is to change its model; it takes no new rows before the change."""
        return self.wanted.model != self.duty.model


@dataclass(frozen=True, slots=True)
class Done:
    """A served request."""

    request: Request
    at: float
    worker: str
    model: str
    steps_run: int
    joined_at: float = 0.0

    @property
    def seconds(self) -> float:
        return self.at - self.request.at
