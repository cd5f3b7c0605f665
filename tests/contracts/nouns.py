"""Small real jobs and entries for the contract tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from shared.catalog import Catalog
from shared.domain.ids import new_id
from shared.domain.types import (
    Captured,
    CompatKey,
    Entry,
    Job,
    JobState,
    Plan,
    PlanSource,
    Request,
    Result,
    Scope,
    Size,
    State,
    Vector,
    owner_key,
    vector_bytes,
)

COMPAT = CompatKey("weights-a", "ddim-1", "float32", Size(64, 64), 50)
OWNER = owner_key(Scope.TENANT, "default", "")
LEASE_S = 60.0
EXPIRED_S = -1.0
"""A lease that is already over when it is given."""


def a_vector(seed: int, dim: int = 8) -> Vector:
    row = np.random.default_rng(seed).normal(size=dim).astype(np.float32)
    return row / np.linalg.norm(row)


def a_job(
    prompt: str = "a red cube", *, id: str = "", lane: str = "generate.tiny", priority: int = 0, tenant: str = "default"
) -> Job:
    request = Request(prompt, Size(64, 64), 50, 7.5, 1, priority=priority, tenant=tenant)
    plan = Plan(PlanSource.NOISE, "tiny", capture_steps=(5, 10), reason="nothing similar")
    vector = vector_bytes(a_vector(1))
    return Job(
        id or new_id(), request, plan, JobState.QUEUED, lane=lane, vector=vector, encoder_hash="clip-1", exact_key="x"
    )


def a_result(job_id: str, attempt: int = 1, steps: tuple[int, ...] = (5, 10)) -> Result:
    return Result(
        picture_key=f"pictures/{job_id}/{attempt}.png",
        picture_sha256="ab",
        picture_bytes=7,
        model="tiny",
        weights_hash="weights-a",
        steps_run=50,
        captured=tuple(Captured(step, f"states/{job_id}/{attempt}/{step}", 64, "raw", "cd") for step in steps),
        compat=COMPAT,
    )


def an_entry(
    *, id: str = "", job_id: str = "", steps: tuple[int, ...] = (5, 10), exact_key: str = "", user: str = ""
) -> Entry:
    id = id or new_id()
    job_id = job_id or new_id()
    return Entry(
        id=id,
        job_id=job_id,
        prompt="a red cube",
        tenant="default",
        user=user,
        scope=Scope.PRIVATE if user else Scope.TENANT,
        model="tiny",
        compat=COMPAT,
        exact_key=exact_key or id,
        picture_key=f"pictures/{job_id}/1.png",
        picture_sha256="ab",
        encoder_hash="clip-1",
        created_at=0.0,
        states=tuple(State(id, step, f"states/{job_id}/1/{step}", 64, "raw", "cd") for step in steps),
    )


async def accepted(catalog: Catalog, **fields: Any) -> Job:
    job, created = await catalog.jobs.accept(a_job(**fields), key_lifetime_s=60.0)
    assert created
    return job


async def finished(catalog: Catalog) -> Job:
    job = await accepted(catalog)
    assert await catalog.jobs.claim(job.id, "w1", LEASE_S)
    assert await catalog.jobs.finish(job.id, 1, a_result(job.id))
    return await catalog.jobs.get(job.id)


def latents_of(job: Job) -> list[str]:
    """Keys of what a finished job captured."""
    assert job.result is not None
    return [latent.key for latent in job.result.captured]
