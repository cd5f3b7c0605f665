"""Draws a finished job again from its recorded plan, to show that a picture is a function of it."""

from __future__ import annotations

from dataclasses import replace

from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Finished, Left
from services.gpu_worker.engine.family import Family
from services.gpu_worker.engine.rows import Start
from services.gpu_worker.jobs.starts import lead_of, start_of, task_of
from shared.domain.errors import ModelError
from shared.domain.types import Plan, Request


def redraw(
    family: Family, request: Request, plan: Plan, blob: bytes | None = None, start: Start | None = None
) -> Finished:
    """Run the plan alone, on the calling thread; bit-identical to the job's run under `batch_invariant`
    (docs/architecture.md, Equality). start: that of a plan with several blobs."""
    engine = Engine({plan.model: family}, max_rows=1)
    task = task_of("redraw", request, plan, start or start_of(plan, blob, request.size))
    if plan.lead is not None and blob is not None:
        task = replace(task, held=lead_of(plan.lead, blob, request.size)[-plan.lead.held :])
    engine.submit(task)
    while not engine.idle:
        for event in engine.step():
            if isinstance(event, Finished):
                return event
            if isinstance(event, Left):
                raise event.error
    raise ModelError("the engine ended without a picture")
