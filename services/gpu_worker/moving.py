"""Hands a claimed job to the lane of another model, where only that one may draw it."""

from __future__ import annotations

from shared.backends import Backends
from shared.errors import AfterimageError
from shared.messages import GenerateImage, lane_of
from shared.telemetry import log
from shared.types import Job, Plan


async def move(backends: Backends, job: Job, plan: Plan) -> bool:
    """False when the job is no longer this attempt's. First the row, then the task: a task that is not sent is the
    sweeper's, and of two the second loses the claim.

    Never to `refine`, of which this worker may be the only one that takes.
    """
    lane, jobs = lane_of(plan.model), backends.catalog.jobs
    if not await jobs.move(job.id, job.attempt, lane, plan):
        return False
    log("gpu_worker").info("job moved", job=job.id, lane=lane)
    task = GenerateImage(job.id, plan.state_key, plan.state_sha256)
    try:
        await backends.bus.send(lane, task, priority=job.request.priority)
        await jobs.confirm([job.id])
    except AfterimageError as error:
        log("gpu_worker").warning("task not sent; the sweeper sends it", job=job.id, error=str(error))
    return True
