"""Jobs of a caller: those of others do not exist for it."""

from __future__ import annotations

from services.gateway.fanout import Rows
from services.gateway.validation import Caller
from shared.domain.errors import NotFoundError, UnreadableRowError
from shared.domain.types import Job


async def own_job(jobs: Rows, job_id: str, caller: Caller) -> Job:
    """Return a job that the caller may see. Raises NotFoundError for others, as if the job did not exist."""
    try:
        job = await jobs.get(job_id)
        if caller.may_see(job.request.tenant, job.request.user):
            return job
    except UnreadableRowError as error:
        if error.tenant == caller.tenant and (caller.admin or not caller.subject):
            raise
    raise NotFoundError(f"job {job_id!r}: no such job; it never existed or its result expired")
