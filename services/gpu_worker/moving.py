"""Hands a claimed job to the lane of another model, where only that one may draw it."""

from __future__ import annotations

from dataclasses import replace

from shared.backends import Backends
from shared.dispatch import dispatch
from shared.messages import lane_of
from shared.telemetry import log
from shared.types import Job, Plan


async def move(backends: Backends, job: Job, plan: Plan) -> bool:
    """False when the job is no longer this attempt's.

    Never to `refine`, of which this worker may be the only one that takes.
    """
    lane, jobs = lane_of(plan.model), backends.catalog.jobs
    moved = jobs.move(job.id, job.attempt, lane, plan)
    done = await dispatch(backends.bus, replace(job, lane=lane, plan=plan), jobs.confirm, write=moved)
    if done.written:
        log("gpu_worker").info("job moved", job=job.id, lane=lane)
    if done.error is not None:
        log("gpu_worker").warning("task not sent; the sweeper sends it", job=job.id, error=str(done.error))
    return done.written
