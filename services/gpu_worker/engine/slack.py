"""Scheduling by slack: the most urgent request joins if no deadline is lost by that (PatchedServe §6.2), pure."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import tee

from services.gpu_worker.engine.finishes import Kind, Timed, decode_s, finishes
from services.gpu_worker.engine.scheduler import Decision, is_overdue
from services.gpu_worker.engine.set_aside import Limits, rows_to_bring_back, rows_to_set_aside
from services.gpu_worker.engine.step_seconds import StepSeconds
from shared.models.step_regression import mix_of

PATIENCE = 10.0
"""Standalone times after which a waiting task has aged."""
AGED_SHARE = 4
"""One row in AGED_SHARE, and at least one, is kept for tasks that have aged."""


def decide_by_slack(
    waiting: Sequence[Timed],
    running: Sequence[Timed],
    cancelled: frozenset[str],
    now: float,
    max_rows: int,
    seconds: Mapping[str, StepSeconds],
    max_pixels: float = math.inf,
    aside: Sequence[Timed] = (),
    *,
    may_set_aside: bool = False,
) -> Decision:
    """Decide which tasks join and which leave. `seconds`: the predictor of each model. Rows, frames and pixels are
    limited as in `decide`. aside: rows that are set aside now; may_set_aside: whether more may be (set_aside.py).

    Slack = (deadline − now − predicted remaining) / standalone. Algorithm 1 of the paper, line by line:

    - 1: repeat while a row is free.
    - 2: take the waiting task of least slack. Priority comes before slack. Tasks without a deadline follow those that
      can meet theirs, in order of arrival; tasks that cannot come last. A task that has waited `PATIENCE` standalone
      times goes first, while less than a share of the rows (`AGED_SHARE`) holds such tasks: nobody waits for ever.
    - 3: take the running task of least slack. The text tests only this one, but another may have fewer seconds to
      spare. Here every running task is tested.
    - 5: predict the step with the candidate. Here steps become shorter as rows leave, and decoding is added.
    - 6–9: the paper discards a candidate that would be late even if it started at once. Here only a task with
      `drop_if_late` is not started any more while others run, and its deadline then ends it. Any other late task goes
      last.
    - 11–13: stop if the candidate would make a running task late. A task that is late anyway stops nobody. The
      candidate's model then takes no more tasks; other models still do, unless the candidate has aged.
    - 14–19: enqueue the candidate if throughput grows, else stop. Eq. 1 is printed as t₁·t₂ / (t₃·(t₁ + t₂)) of
      throughputs, and admits large values. With throughput = 1 / seconds of a step that value is
      t_both / (t_batch + t_alone), which is small where joining helps. Here a candidate joins if
      (t_batch + t_alone) / t_both ≥ 1 + the predictor's error. The test is left out for a task that has aged, and where
      no running row of its model can meet a deadline: without deadlines this policy is `decide`.
    """
    overdue = (task.id for task in (*waiting, *running, *aside) if task.drop_if_late and is_overdue(task, now))
    late = tuple(name for name in overdue if name not in cancelled)
    gone = cancelled.union(late)
    riding = [task for task in running if task.id not in gone] if gone else list(running)
    queue = [task for task in waiting if task.id not in gone] if gone else waiting
    left = Decision(cancel=tuple(cancelled), late=late)
    away = [task for task in aside if task.id not in gone]
    if away:
        back = rows_to_bring_back(riding, away, now, Limits(max_rows, max_pixels), seconds)
        return replace(left, resume=tuple(task.id for task in back))
    if not queue or any(task.alone for task in riding) or (len(riding) >= max_rows and not may_set_aside):
        return left
    joining = _Joining(riding, {task.model for task in queue}, now, max_rows, max_pixels, seconds)
    order, again = tee(_ordered(queue, joining))  # lazy: most decisions need only the first few of a long queue
    for task, aged in order if len(riding) < max_rows else ():
        if not joining.take(task, aged):
            break
    if joining.joined or not may_set_aside:
        return replace(left, join=tuple(joining.joined), aged=tuple(joining.aged))
    candidates = (task for task, _ in again)
    found = rows_to_set_aside(candidates, riding, now, Limits(max_rows, max_pixels), seconds)
    if found is None:
        return left
    guest, rows = found
    return replace(left, join=(guest.id,), aside=tuple(row.id for row in rows))


class _Joining:
    """The batch as it grows during one decision."""

    def __init__(
        self,
        riding: Sequence[Timed],
        models: set[str],
        now: float,
        max_rows: int,
        max_pixels: float,
        seconds: Mapping[str, StepSeconds],
    ) -> None:
        """models: those that still take tasks."""
        self.now, self.max_rows, self.seconds = now, max_rows, seconds
        self.rows = list(riding)
        self.joined: list[str] = []
        self.aged: list[str] = []
        self._models, self._max_pixels = models, max_pixels
        self._frames, self._pixels = Counter[str](), Counter[str]()
        for task in riding:
            self._frames[task.model] += task.frames
            self._pixels[task.model] += task.pixels
        self._finishes = finishes(self.rows, seconds)

    def take(self, task: Timed, aged: bool) -> bool:
        """Let the task join if it may; return whether another task may join in this decision."""
        if task.alone:  # as in `decide`: once it is first in line, nobody overtakes
            if not self.rows:
                self._join(task, [0.0])
            return False
        if task.model not in self._models:
            return True
        frames, together = self._frames[task.model], self._pixels[task.model] + task.pixels
        if frames and (frames + task.frames > self.max_rows or together > self._max_pixels):
            return self._passes_over(task.model)
        after = finishes([*self.rows, task], self.seconds)
        hopeless = task.drop_if_late and self.rows
        if (self.joined or hopeless) and not aged and self._is_late(task, after[-1]):
            return True  # perhaps late only since others joined: its place is decided again before the next step
        if self._harms(after) or not (aged or self._gains(task)):
            return self._passes_over(task.model) and not aged
        self._join(task, after)
        if aged:
            self.aged.append(task.id)
        return len(self.rows) < self.max_rows

    def _join(self, task: Timed, after: list[float]) -> None:
        self.rows.append(task)
        self.joined.append(task.id)
        self._frames[task.model] += task.frames
        self._pixels[task.model] += task.pixels
        self._finishes = after

    def _passes_over(self, model: str) -> bool:
        """Take no more tasks of this model, so that they do not overtake; return whether another model is left."""
        self._models.discard(model)
        return bool(self._models)

    def _is_late(self, task: Timed, finish_s: float) -> bool:
        return task.deadline_at is not None and self.now + finish_s > task.deadline_at

    def _harms(self, after: Sequence[float]) -> bool:
        """Return whether a row that is on time becomes late."""
        return any(
            self._is_late(row, then) and not self._is_late(row, before)
            for row, before, then in zip(self.rows, self._finishes, after, strict=False)
        )

    def _gains(self, task: Timed) -> bool:
        """Return whether throughput grows by more than the predictor's error, or no row that must be in time is beside
        the task."""
        predicted = self.seconds[task.model]
        rows = [(row, end) for row, end in zip(self.rows, self._finishes, strict=True) if row.model == task.model]
        if not any(row.deadline_at is not None and not self._is_late(row, end) for row, end in rows):
            return True
        beside = [row.kind for row, _ in rows]
        batch_s, alone_s = predicted.of(mix_of(beside)), predicted.of(mix_of([task.kind]))
        return batch_s + alone_s >= (1 + predicted.error) * predicted.of(mix_of([*beside, task.kind]))


class _Remaining:
    """Predicted seconds of waiting tasks if each joined now, and alone; tasks of one kind share a line."""

    def __init__(self, riding: Sequence[Timed], seconds: Mapping[str, StepSeconds]) -> None:
        self._riding, self._seconds = riding, seconds
        self._lines: dict[tuple[str, Kind], tuple[list[int], list[float], list[float], float, float]] = {}

    def of(self, task: Timed) -> tuple[float, float]:
        """Return the seconds until the task is finished if it joins now, and its standalone seconds."""
        key = task.model, task.kind
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = self._line(task)
        ran, at, rates, alone_s, ending_s = line
        left = task.left
        place = bisect_left(ran, left) - 1
        return at[place] + (left - ran[place]) * rates[place] + ending_s, task.steps * alone_s + ending_s

    def _line(self, task: Timed) -> tuple[list[int], list[float], list[float], float, float]:
        """Return steps, seconds after them, and seconds per step from there on, of a task beside the running rows; and
        seconds per step alone, and of decoding."""
        predicted = self._seconds[task.model]
        models = len({task.model, *(row.model for row in self._riding)})
        rows = sorted((row for row in self._riding if row.model == task.model), key=lambda row: row.left)
        ran, at = [0], [0.0]
        rates = [predicted.of(mix_of([task.kind, *(row.kind for row in rows)])) * models]
        for place, row in enumerate(rows):
            ends = at[-1] + (row.left - ran[-1]) * rates[-1] + decode_s(row, predicted)
            rate = predicted.of(mix_of([task.kind, *(one.kind for one in rows[place + 1 :])])) * models
            if row.left == ran[-1] and len(ran) > 1:
                at[-1], rates[-1] = ends, rate
            else:
                ran.append(row.left)
                at.append(ends)
                rates.append(rate)
        return ran, at, rates, predicted.of(mix_of([task.kind])), decode_s(task, predicted)


def _ordered(queue: Sequence[Timed], joining: _Joining) -> Iterator[tuple[Timed, bool]]:
    """Yield the waiting tasks in the order of Algorithm 1's line 2, and whether each goes first because it has aged."""
    remaining, now = _Remaining(joining.rows, joining.seconds), joining.now
    heap: list[tuple[bool, int, bool, float, int, int]] = []
    aged: list[tuple[int, int]] = []
    for place, task in enumerate(queue):
        finish_s, alone_s = remaining.of(task)
        deadline_at, arrived = task.deadline_at, task.arrived
        spare_s = 0.0 if deadline_at is None else deadline_at - now - finish_s
        late = spare_s < 0
        if now - task.since > PATIENCE * alone_s and not (late and task.drop_if_late):
            aged.append((arrived, place))
        slack = spare_s / alone_s if spare_s > 0 else 0.0
        heap.append((late, -task.priority, deadline_at is None, slack, arrived, place))
    held = sum(row.aged for row in joining.rows)
    first = {place for _, place in heapq.nsmallest(max(joining.max_rows // AGED_SHARE, 1) - held, aged)}
    yield from ((queue[place], True) for place in sorted(first, key=lambda place: queue[place].arrived))
    heapq.heapify(heap)
    while heap:
        place = heapq.heappop(heap)[-1]
        if place not in first:
            yield queue[place], False
