"""Jobs of a caller: those of others do not exist for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from cachetools import TTLCache

from services.gateway.caller import Caller
from services.gateway.fanout import Rows
from shared.catalog import Jobs
from shared.domain.errors import NotFoundError, UnreadableRowError
from shared.domain.identity import subject_of
from shared.domain.types import Job
from shared.runtime.audit import FILE, READS, record

ACTS = frozenset({"cancel job", "erase job"})
"""Actions on a job that change it; the others read."""
LONGEST_ID = 64
SAME_S = 60.0
"""Seconds in which the same read again leaves no second line: a flood of them pushes out no others."""
LISTS_AT_ONCE = 2
"""Pages of jobs that are read for one tenant at the same time; further ones wait. A flood of them would hold up the
reading of keys, and with it the end of a revoked one."""
_listing = WeakValueDictionary[tuple[Jobs, str], asyncio.Semaphore]()
"""Places for these reads, by catalog and tenant."""
_noted: TTLCache[tuple[Path, str, str, str], None] = TTLCache(10_000, SAME_S)


def _unknown(job_id: str) -> str:
    """Return what a caller is told of a job that does not exist for it."""
    return f"job {job_id[:LONGEST_ID]!r}: no such job; it never existed or its result expired"


def note_admin(caller: Caller, data_dir: Path, action: str, target: str, user: str = "") -> None:
    """Record what a tenant's admin reads or ends of others, once in SAME_S. user: whose job it is, as stored."""
    if not caller.admin or (user and subject_of(user) == caller.subject):
        return
    line = f"{caller.tenant}/{caller.subject}", action, target
    if (data_dir, *line) not in _noted:
        _noted[data_dir, *line] = None
        file = FILE if action in ACTS else READS
        record(data_dir, actor=line[0], action=action, target=target, file=file)


async def own_jobs(jobs: Jobs, caller: Caller, data_dir: Path, **page: Any) -> tuple[list[Job], str]:
    """Return a page of the jobs that the caller may see, newest first, and the token of the next page; see
    `Jobs.list`."""
    note_admin(caller, data_dir, "list jobs", f"tenant {caller.tenant}")
    async with _listing.setdefault((jobs, caller.tenant), asyncio.Semaphore(LISTS_AT_ONCE)):
        return await jobs.list(tenant=caller.tenant, subject=None if caller.admin else caller.subject, **page)


async def own_job(jobs: Rows, job_id: str, caller: Caller, data_dir: Path, action: str = "read job") -> Job:
    """Return a job that the caller may see; the audit log gets the action of an admin on somebody else's.

    Raises NotFoundError for others, as if the job did not exist.
    """
    try:
        # clients cannot read an error with a long text, and PostgreSQL refuses a zero character
        if len(job_id) > LONGEST_ID or "\0" in job_id:
            raise NotFoundError(_unknown(job_id))
        job = await jobs.get(job_id)
        if caller.may_see(job.request.tenant, job.request.user):
            note_admin(caller, data_dir, action, job_id, job.request.user)
            return job
    except UnreadableRowError as error:
        if error.tenant == caller.tenant and (caller.admin or not caller.subject):
            raise
    raise NotFoundError(_unknown(job_id))
