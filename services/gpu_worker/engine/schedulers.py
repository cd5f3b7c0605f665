"""The engine's schedulers: by priority, or by slack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from services.gpu_worker.engine.family import Family
from services.gpu_worker.engine.finishes import Timed
from services.gpu_worker.engine.passes import passes_of, resolution_of
from services.gpu_worker.engine.rows import FromNoise, Row, Task
from services.gpu_worker.engine.scheduler import Decision, decide
from services.gpu_worker.engine.slack import decide_by_slack
from services.gpu_worker.engine.step_seconds import StepSeconds
from shared.models.step_regression import mix_of

Families = Mapping[str, Family]


class Scheduler(Protocol):
    """Which tasks join the batch, and which leave. Not thread-safe, like the engine."""

    def decide(
        self,
        waiting: Sequence[Task],
        running: Sequence[Row],
        cancelled: frozenset[str],
        now: float,
        max_rows: int,
        max_pixels: float,
        families: Families,
        aside: Sequence[Row] = (),
    ) -> Decision:
        """aside: rows that an earlier decision set aside."""
        ...

    def took(self, model: str, rows: Sequence[Row], seconds: float) -> None:
        """Record the seconds of a step of these rows, all of one model."""
        ...


class ByPriority:
    """Priority, then earliest deadline, then arrival (scheduler.py)."""

    def decide(
        self,
        waiting: Sequence[Task],
        running: Sequence[Row],
        cancelled: frozenset[str],
        now: float,
        max_rows: int,
        max_pixels: float,
        families: Families,
        aside: Sequence[Row] = (),
    ) -> Decision:
        return decide(waiting, [row.task for row in running], cancelled, now, max_rows, max_pixels)

    def took(self, model: str, rows: Sequence[Row], seconds: float) -> None:
        pass


class BySlack:
    """Least slack first, as predicted step times allow (slack.py)."""

    def __init__(self, seconds: Mapping[str, StepSeconds] | None = None, *, set_aside: bool = False) -> None:
        """seconds: the predictor of each model; one that knows nothing is added for a model without one. set_aside:
        whether running rows may be set aside for an urgent task (set_aside.py)."""
        self._seconds, self._set_aside = dict(seconds or {}), set_aside
        self._timed: dict[str, Timed] = {}
        """What the policy reads of each task in the engine."""

    def decide(
        self,
        waiting: Sequence[Task],
        running: Sequence[Row],
        cancelled: frozenset[str],
        now: float,
        max_rows: int,
        max_pixels: float,
        families: Families,
        aside: Sequence[Row] = (),
    ) -> Decision:
        known, self._timed = self._timed, {}
        for task in (*waiting, *(row.task for row in (*running, *aside))):
            self._timed[task.id] = known.get(task.id) or self._read(task, now, families.get(task.model))
        decision = decide_by_slack(
            [self._timed[task.id] for task in waiting],
            [replace(self._timed[row.task.id], left=row.left) for row in running],
            cancelled,
            now,
            max_rows,
            self._seconds,
            max_pixels,
            [replace(self._timed[row.task.id], left=row.left) for row in aside],
            may_set_aside=self._set_aside,
        )
        for name in decision.aged:
            self._timed[name] = replace(self._timed[name], aged=True)
        for name in decision.aside:
            self._timed[name] = replace(self._timed[name], was_aside=True, made_room_for=decision.join[0])
        return decision

    def took(self, model: str, rows: Sequence[Row], seconds: float) -> None:
        passes = ((resolution_of(row.task), 1 if row.negative is None or row.unprompted else 2) for row in rows)
        self._of(model).took(mix_of(passes), seconds)

    def _read(self, task: Task, now: float, family: Family | None) -> Timed:
        self._of(task.model)
        steps = task.steps - (0 if isinstance(task.start, FromNoise) else task.start.step)
        return Timed(
            id=task.id,
            model=task.model,
            kind=(resolution_of(task), passes_of(family, task) if family is not None else 1),
            steps=steps,
            left=steps,
            since=now,
            frames=task.frames,
            priority=task.priority,
            deadline_at=task.deadline_at,
            drop_if_late=task.drop_if_late,
            alone=task.alone,
            arrived=task.arrived,
        )

    def _of(self, model: str) -> StepSeconds:
        return self._seconds.setdefault(model, StepSeconds())
