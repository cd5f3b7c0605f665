"""Jobs of a caller: those of others do not exist for it."""

from __future__ import annotations

from pathlib import Path

from services.gateway.caller import Caller
from services.gateway.fanout import Rows
from shared.domain.errors import NotFoundError, UnreadableRowError
from shared.domain.identity import subject_of
from shared.domain.types import Job
from shared.runtime.audit import record


def note_admin(caller: Caller, data_dir: Path, action: str, target: str, user: str = "") -> None:
    """Record what a tenant's admin reads or ends of others. user: whose job it is, as stored."""
    if caller.admin and not (user and subject_of(user) == caller.subject):
        record(data_dir, actor=f"{caller.tenant}/{caller.subject}", action=action, target=target)


async def own_job(jobs: Rows, job_id: str, caller: Caller, data_dir: Path, action: str = "read job") -> Job:
    """Return a job that the caller may see; the audit log gets the action of an admin on somebody else's.

    Raises NotFoundError for others, as if the job did not exist.
    """
    try:
        job = await jobs.get(job_id)
        if caller.may_see(job.request.tenant, job.request.user):
            note_admin(caller, data_dir, action, job_id, job.request.user)
            return job
    except UnreadableRowError as error:
        if error.tenant == caller.tenant and (caller.admin or not caller.subject):
            raise
    raise NotFoundError(f"job {job_id!r}: no such job; it never existed or its result expired")
