"""Predicted finishes of the rows of a batch, pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.gpu_worker.engine.step_seconds import StepSeconds
from shared.models.step_regression import Resolution, mix_of, pixels

Kind = tuple[Resolution, int]
"""Resolution and forward passes of a task."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A task as this policy reads it: the fields of `Queued`, and what its time depends on."""

    id: str
    model: str
    kind: Kind
    steps: int
    """Steps that the task runs here, from its start step on."""
    left: int
    """Steps left of `steps`."""
    since: float
    """Time of submission."""
    aged: bool = False
    """True for a running task that joined because it had aged (`Decision.aged`)."""
    frames: int = 1
    priority: int = 0
    deadline_at: float | None = None
    drop_if_late: bool = False
    alone: bool = False
    arrived: int = 0
    was_aside: bool = False
    """The row has been set aside before (set_aside.py)."""
    made_room_for: str = ""
    """Of a row that is set aside: id of the task that it made room for."""

    @property
    def pixels(self) -> int:
        """Return the pixels of all frames."""
        return pixels(((self.kind[0], 1),))


def finishes(rows: Sequence[Timed], seconds: Mapping[str, StepSeconds]) -> list[float]:
    """Return the seconds until each row is finished and decoded if no row joins.

    Models share the time equally, so the steps of each take as many times longer as there are models.
    """
    found = [0.0] * len(rows)
    by_model: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        by_model.setdefault(row.model, []).append(i)
    for model, members in by_model.items():
        predicted, at, ran = seconds[model], 0.0, 0
        order = sorted(members, key=lambda i: rows[i].left)
        for place, i in enumerate(order):
            if rows[i].left > ran:
                mix = mix_of(rows[j].kind for j in order[place:])
                at += (rows[i].left - ran) * predicted.of(mix) * len(by_model)
                ran = rows[i].left
            at += decode_s(rows[i], predicted)
            found[i] = at
    return found


def decode_s(task: Timed, predicted: StepSeconds) -> float:
    """Return the predicted seconds of decoding the task's image or clip."""
    return predicted.decode_s(task.pixels)
