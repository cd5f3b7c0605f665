"""Setting rows aside between two steps for a task that would be late if it waited (beyond PatchedServe §6.2), pure.

A row that is set aside keeps its latent and runs no step. It comes back when the task that it makes room for has left,
or before that where nobody becomes late by it. No other task joins until all rows are back, and a row is set aside at
most once. So by the predictions no row that was on time becomes late, and no row waits longer than for one task.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from services.gpu_worker.engine.finishes import Timed, finishes
from services.gpu_worker.engine.step_seconds import StepSeconds

MOST_TRIED = 4
"""Most urgent waiting tasks for which rows may be set aside: each costs predictions of the whole batch."""
Seconds = Mapping[str, StepSeconds]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one model's batch."""

    rows: int
    pixels: float = math.inf

    def allow(self, rows: Sequence[Timed]) -> bool:
        """Return whether these rows, all of one model, fit into a batch."""
        frames = sum(row.frames for row in rows)
        return len(rows) <= 1 or (frames <= self.rows and sum(row.pixels for row in rows) <= self.pixels)


def planned(running: Sequence[Timed], aside: Sequence[Timed], first: str, seconds: Seconds) -> dict[str, float]:
    """Return the predicted seconds until each row is finished, if the rows aside come back when `first` leaves.

    All rows are of one model, so each step advances every running row.
    """
    before = dict(zip((row.id for row in running), finishes(running, seconds), strict=True))
    (guest,) = (row for row in running if row.id == first)
    rest = [replace(row, left=row.left - guest.left) for row in running if row.left > guest.left]
    together = [*rest, *aside]
    # rows that finish in the same step as the guest are decoded before the rest goes on
    at = max((before[row.id] for row in running if row.left <= guest.left), default=before[first])
    after = dict(zip((row.id for row in together), finishes(together, seconds), strict=True))
    return {**before, **{name: at + then for name, then in after.items()}}


def rows_to_set_aside(
    candidates: Iterator[Timed], running: Sequence[Timed], now: float, limits: Limits, seconds: Seconds
) -> tuple[Timed, tuple[Timed, ...]] | None:
    """Return a waiting task whose deadline is met if it joins now and these rows are set aside, and no row that is
    predicted on time becomes late; None if there is none. candidates: waiting tasks, most urgent first."""
    if not running or any(row.alone for row in running) or len({row.model for row in running}) > 1:
        return None
    model = running[0].model
    alone = dict(zip((row.id for row in running), finishes(running, seconds), strict=True))
    on_time = [row for row in running if _in_time(row, alone[row.id], now)]
    spare = sorted(
        (row for row in running if not row.was_aside),
        key=lambda row: _spare(row, alone[row.id], now),
        reverse=True,
    )
    tried = 0
    for task in candidates:
        if task.deadline_at is None or task.alone or task.model != model:
            continue
        if tried >= MOST_TRIED or not spare:
            return None
        tried += 1
        if _in_time(task, _if_it_waits(task, running, alone, seconds), now):
            continue  # no need
        for count in range(1, len(spare) + 1):
            aside = spare[:count]
            names = {row.id for row in aside}
            batch = [*(row for row in running if row.id not in names), task]
            if not limits.allow(batch):
                continue
            then = planned(batch, aside, task.id, seconds)
            if not _in_time(task, then[task.id], now):
                continue
            if all(_in_time(row, then[row.id], now) for row in on_time):
                return task, tuple(aside)
            break  # more rows aside make more rows late
    return None


def rows_to_bring_back(
    running: Sequence[Timed], aside: Sequence[Timed], now: float, limits: Limits, seconds: Seconds
) -> tuple[Timed, ...]:
    """Return the rows that rejoin now: all, once the task they made room for has left; else those by which no row
    becomes late."""
    first = aside[0].made_room_for
    if all(row.id != first for row in running):
        return tuple(aside)
    back: list[Timed] = []
    batch, left = list(running), list(aside)
    for row in sorted(aside, key=lambda row: (row.deadline_at is None, row.deadline_at or 0.0, row.arrived)):
        before, others = planned(batch, left, first, seconds), [one for one in left if one is not row]
        if not limits.allow([*batch, row]):
            continue
        after = planned([*batch, row], others, first, seconds)
        on_time = [one for one in (*batch, *left) if _in_time(one, before[one.id], now)]
        if all(_in_time(one, after[one.id], now) for one in on_time):
            back.append(row)
            batch, left = [*batch, row], others
    return tuple(back)


def _if_it_waits(task: Timed, running: Sequence[Timed], alone: Mapping[str, float], seconds: Seconds) -> float:
    """Return the predicted seconds until the task is finished, if it joins when the next running row leaves."""
    leaving = min(running, key=lambda row: alone[row.id])
    rest = [replace(row, left=row.left - leaving.left) for row in running if row.left > leaving.left]
    return alone[leaving.id] + finishes([*rest, task], seconds)[-1]


def _in_time(row: Timed, finish_s: float, now: float) -> bool:
    """Return whether the row meets its deadline; true without one."""
    return row.deadline_at is None or now + finish_s <= row.deadline_at


def _spare(row: Timed, finish_s: float, now: float) -> float:
    """Return the seconds that the row can lose; infinite without a deadline, and for a row that is late anyway."""
    if row.deadline_at is None or now + finish_s > row.deadline_at:
        return math.inf
    return row.deadline_at - now - finish_s
