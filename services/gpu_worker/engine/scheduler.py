"""Scheduling: decide which tasks join the batch before the next step and which leave. Pure functions over values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Queued(Protocol):
    """The fields of a task that the decision reads."""

    @property
    def id(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def frames(self) -> int: ...
    @property
    def pixels(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def deadline_at(self) -> float | None: ...
    @property
    def drop_if_late(self) -> bool: ...
    @property
    def alone(self) -> bool: ...
    @property
    def arrived(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Decision:
    """Task ids to admit, to cancel and to drop as late, all before the step runs."""

    join: tuple[str, ...] = ()
    cancel: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    aged: tuple[str, ...] = ()
    """Those of `join` that go first because they waited long (slack.py)."""
    aside: tuple[str, ...] = ()
    """Running rows that are set aside for the task of `join` (set_aside.py)."""
    resume: tuple[str, ...] = ()
    """Rows that were set aside and run again."""


def decide(
    waiting: Sequence[Queued],
    running: Sequence[Queued],
    cancelled: frozenset[str],
    now: float,
    max_rows: int,
    max_pixels: float = math.inf,
) -> Decision:
    """Decide which tasks join and which leave.

    Tasks join by priority, then earliest deadline, then arrival, as many as there are free rows. All frames of one
    model's tasks share a forward pass, so they count as rows too: several clips take no more memory than `max_rows`
    images. The pixels of these frames stay within `max_pixels`. A task above one of the two limits runs without others
    of its model. Cancelled tasks leave, and so do tasks with `drop_if_late` past their deadline. A task that must run
    alone waits for an empty batch. Once that task is first in line no task overtakes it, else it would wait for ever.
    """
    if not waiting and not cancelled and not any(is_overdue(task, now) for task in running):
        return Decision()  # the usual case
    late = tuple(task.id for task in [*waiting, *running] if is_overdue(task, now) and task.id not in cancelled)
    gone = cancelled.union(late)
    riding = [task for task in running if task.id not in gone]
    queue = sorted((task for task in waiting if task.id not in gone), key=_order)
    return Decision(join=tuple(_joining(queue, riding, max_rows, max_pixels)), cancel=tuple(cancelled), late=late)


def _joining(queue: Sequence[Queued], riding: Sequence[Queued], max_rows: int, max_pixels: float) -> list[str]:
    if any(task.alone for task in riding):
        return []
    if queue and queue[0].alone:
        return [] if riding else [queue[0].id]
    frames, pixels = Counter[str](), Counter[str]()
    for task in riding:
        frames[task.model] += task.frames
        pixels[task.model] += task.pixels
    joining: list[str] = []
    full: set[str] = set()
    for task in queue:
        if task.alone or len(riding) + len(joining) >= max_rows:
            break
        fits = frames[task.model] + task.frames <= max_rows and pixels[task.model] + task.pixels <= max_pixels
        if task.model in full or (frames[task.model] and not fits):
            full.add(task.model)  # no later task of the model overtakes this one
            continue
        frames[task.model] += task.frames
        pixels[task.model] += task.pixels
        joining.append(task.id)
    return joining


def _order(task: Queued) -> tuple[int, float, int]:
    return (-task.priority, float("inf") if task.deadline_at is None else task.deadline_at, task.arrived)


def is_overdue(task: Queued, now: float) -> bool:
    """Return whether the task is dropped: its deadline passed, and its client set `drop_if_late`."""
    return task.drop_if_late and task.deadline_at is not None and now > task.deadline_at
