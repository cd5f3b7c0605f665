"""A gpu_worker whose tasks join first come, first served: the schedulers that PatchedServe compares with (§8.1).

BENCH_JOIN=first_come     NIRVANA with ORCA-style batching: a task joins as soon as a row is free
BENCH_JOIN=resolution     FCFS per resolution: a batch holds one size, and other sizes wait until it is empty
"""

from __future__ import annotations

import os
import runpy
from collections.abc import Sequence
from typing import Any

from services.gpu_worker import service
from services.gpu_worker.engine.passes import resolution_of
from services.gpu_worker.engine.rows import Row, Task
from services.gpu_worker.engine.scheduler import Decision, is_overdue
from services.gpu_worker.engine.schedulers import ByPriority, Families

JOIN, ROWS = "BENCH_JOIN", "BENCH_ROWS"
WAYS = ("first_come", "resolution")


class FirstCome(ByPriority):
    """Arrival alone orders tasks; deadlines only drop those that asked for it."""

    def __init__(self, rows: int, *, one_resolution: bool) -> None:
        """rows: most rows of a batch, where the worker holds more tasks than that."""
        self._rows, self._one_resolution = rows, one_resolution

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
        here = [row.task for row in running]
        late = tuple(task.id for task in [*waiting, *here] if is_overdue(task, now) and task.id not in cancelled)
        gone = cancelled.union(late)
        riding = [task for task in here if task.id not in gone]
        queue = sorted((task for task in waiting if task.id not in gone), key=lambda task: task.arrived)
        if self._one_resolution and queue:
            size = resolution_of((riding or queue)[0])
            queue = [task for task in queue if resolution_of(task) == size]
        free = max(min(max_rows, self._rows) - len(riding), 0)
        return Decision(join=tuple(task.id for task in queue[:free]), cancel=tuple(cancelled), late=late)


def main() -> None:
    join, rows = os.environ[JOIN], int(os.environ[ROWS])

    async def scheduler_of(*_: Any) -> FirstCome:
        return FirstCome(rows, one_resolution=join == "resolution")

    setattr(service, "scheduler_of", scheduler_of)  # noqa: B010 — the service's own code runs unchanged around it
    runpy.run_module("services.gpu_worker", run_name="__main__")


if __name__ == "__main__":
    main()
