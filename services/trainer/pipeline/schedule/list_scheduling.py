"""List scheduling in unit slots: at each slot, every free place starts its best task that is ready."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Task(Generic[Name]):
    """One unit of work at a place."""

    place: int
    needs: tuple[Name, ...]
    rank: tuple[int, ...]
    """Among the ready tasks of a place, the one with the least rank starts."""
    opens: Hashable | None = None
    """The account on which this task holds one more micro-batch; it waits while the account is full."""
    closes: Hashable | None = None
    """The account from which this task takes one."""


def list_schedule(
    tasks: Mapping[Name, Task[Name]], places: int, held: Mapping[Hashable, int], delay: int = 0
) -> tuple[tuple[Name, ...], ...]:
    """Return for each place its tasks in the order in which they start.

    held: the limit of each account. delay: slots that a result takes to another place.
    """
    rows: list[list[Name]] = [[] for _ in range(places)]
    waiting: list[list[Name]] = [[] for _ in range(places)]
    for name, task in sorted(tasks.items(), key=lambda item: item[1].rank):
        waiting[task.place].append(name)
    done: dict[Name, int] = {}
    open_now = dict.fromkeys(held, 0)
    slot = 0

    def ready(name: Name) -> bool:
        task = tasks[name]
        if task.opens is not None and open_now[task.opens] >= held[task.opens]:
            return False
        for need in task.needs:
            if need not in done or done[need] + delay * (tasks[need].place != task.place) > slot:
                return False
        return True

    while any(waiting):
        started = [found for names in waiting if (found := next(filter(ready, names), None)) is not None]
        if not started and slot > max(done.values(), default=0) + delay:
            raise RuntimeError(f"no task can start: the limits {dict(held)} are too small")
        slot += 1
        for name in started:
            task = tasks[name]
            waiting[task.place].remove(name)
            rows[task.place].append(name)
            done[name] = slot
            if task.opens is not None:
                open_now[task.opens] += 1
            if task.closes is not None:
                open_now[task.closes] -= 1
    return tuple(tuple(row) for row in rows)
