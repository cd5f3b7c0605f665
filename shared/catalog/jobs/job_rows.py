"""Conversion of jobs to rows and back; rows that this version cannot read are skipped."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from shared.catalog.engines.database import chunks
from shared.catalog.tables import jobs
from shared.domain.identity import subject_of
from shared.domain.masks import Mask
from shared.domain.types import Job, JobState, Plan, Request, Result, from_json, to_json
from shared.runtime.unreadable import readable, unreadable

_read = lru_cache(maxsize=256)(from_json)
"""A job's row is read when it is claimed, answered and cached. The parsed values are frozen, so each is parsed once."""


def forget_rows() -> None:
    """Drop the parsed requests, plans and results that are in memory: some may be of erased jobs."""
    _read.cache_clear()


def job_of(row: Any) -> Job:
    """Return the row as a Job; raise UnreadableRowError for a row that this version cannot read."""
    try:
        return _job_of(row)
    except (ValueError, TypeError) as error:
        raise unreadable(jobs.name, row.id, error, row.tenant) from error


def jobs_of(rows: Iterable[Any]) -> list[Job]:
    """Return the jobs of those rows that this version can read."""
    return readable(rows, job_of)


def update_readable(connection: sa.Connection, update: Any, parameters: dict[str, Any]) -> list[Job]:
    """Run an update that returns jobs, on the rows that this version can read; return the updated jobs."""
    ids = [job.id for job in jobs_of(connection.execute(sa.select(jobs).where(update.whereclause), parameters))]
    mine = update.where(jobs.c.id.in_(sa.bindparam("ids", expanding=True)))
    changed: list[Any] = []
    for some in chunks(ids):
        changed += connection.execute(mine, {**parameters, "ids": some})
    return jobs_of(changed)


def update_one(connection: sa.Connection, update: sa.Update, parameters: dict[str, Any]) -> bool:
    """Run an update of one row; return whether such a row existed."""
    return connection.execute(update, parameters).rowcount == 1


def _job_of(row: Any) -> Job:
    return Job(
        id=row.id,
        request=_read(Request, row.request),
        plan=_read(Plan, row.plan),
        state=JobState(row.state),
        attempt=row.attempt,
        failures=row.failures,
        crashes=row.crashes,
        crashes_alone=row.crashes_alone,
        exposed_from=row.exposed_from,
        exposed_s=row.exposed_s,
        alone_s=row.alone_s,
        worker=row.worker,
        lane=row.lane,
        error=row.error,
        result=_read(Result, row.result) if row.result else None,
        created_at=row.created_at,
        updated_at=row.updated_at,
        lease_until=row.lease_until,
        vector=bytes(row.vector),
        object_vector=bytes(row.object_vector or b""),
        background_vector=bytes(row.background_vector or b""),
        mask=mask_of(row),
        encoder_hash=row.encoder_hash,
        exact_key=row.exact_key,
        checkpoint_key=row.checkpoint_key or "",
        checkpoint_step=row.checkpoint_step,
        warnings=tuple(json.loads(row.warnings)) if row.warnings else (),
        confirmed=bool(row.confirmed),
        buried=bool(row.buried),
        standalone_s=row.standalone_s or 0.0,
        batched_s=row.batched_s or 0.0,
        predicted_s=row.predicted_s or 0.0,
    )


def mask_of(row: Any) -> Mask | None:
    """Return the masks that a row of `jobs` or `entries` names."""
    return Mask(row.mask_key, row.mask_sha256, row.mask_bytes) if row.mask_key else None


def row_of(job: Job) -> dict[str, Any]:
    """Return the job as a row's columns, except the two times, which the database's clock sets."""
    return {
        "id": job.id,
        "tenant": job.request.tenant,
        "subject": subject_of(job.request.user),
        "state": job.state.value,
        "lane": job.lane,
        "priority": job.request.priority,
        "attempt": job.attempt,
        "failures": job.failures,
        "crashes": job.crashes,
        "worker": job.worker,
        "error": job.error,
        "confirmed": job.state.final,  # no task is sent for a job that is finished when accepted
        "lease_until": job.lease_until,
        "encoder_hash": job.encoder_hash,
        "exact_key": job.exact_key,
        "checkpoint_key": job.checkpoint_key or None,
        "checkpoint_step": job.checkpoint_step,
        "picture_key": job.result.picture_key if job.result else None,
        "request": to_json(job.request).decode(),
        "plan": to_json(job.plan).decode(),
        "result": to_json(job.result).decode() if job.result else "",
        "warnings": json.dumps(job.warnings) if job.warnings else "",
        "vector": job.vector,
        "object_vector": job.object_vector or None,
        "background_vector": job.background_vector or None,
        "deadline_s": job.request.deadline_s,
        "standalone_s": job.standalone_s or None,
        "batched_s": job.batched_s or None,
        "predicted_s": job.predicted_s or None,
        "pixel_steps": job.pixel_steps,
        "mask_key": None,  # named later, once the clip is segmented
    }
