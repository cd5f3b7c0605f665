"""What a lane's jobs tell of their deadlines, on SQLite and on PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shared.catalog import Catalog
from shared.catalog.jobs.lanes import Backlog, found_by
from shared.domain.types import Job
from tests.contracts.catalog.conftest import change, look
from tests.contracts.nouns import LEASE_S, a_job, a_result

LANE = "generate.tiny"


async def queued(catalog: Catalog, *, deadline_s: float | None = None, lane: str = LANE, **columns: Any) -> Job:
    job = a_job(lane=lane)
    request = replace(job.request, deadline_s=deadline_s, priority=columns.pop("priority", 0))
    job, _ = await catalog.jobs.accept(replace(job, request=request, standalone_s=columns.pop("standalone_s", 0.0)))
    if columns:
        await change(catalog, job.id, **columns)
    return job


async def test_a_job_keeps_what_was_predicted(catalog: Catalog) -> None:
    sent = replace(a_job(), standalone_s=2.5, batched_s=5.5, predicted_s=7.25)
    job, _ = await catalog.jobs.accept(replace(sent, request=replace(sent.request, deadline_s=9.0, slo="standard")))
    again = await catalog.jobs.get(job.id)
    assert (again.standalone_s, again.batched_s, again.predicted_s) == (2.5, 5.5, 7.25)
    assert again.request.slo == "standard"
    assert (await look(catalog, job.id))["deadline_s"] == 9.0
    assert again.deadline_met is None


async def test_the_backlog_of_a_lane(catalog: Catalog) -> None:
    assert found_by("default", await catalog.jobs.backlogs(LANE)) == Backlog()
    for seconds in (1.0, 3.0, 0.0):
        await queued(catalog, standalone_s=seconds)
    await queued(catalog, standalone_s=50.0, lane="generate.other")
    running = await queued(catalog, standalone_s=9.0)
    assert await catalog.jobs.claim(running.id, "w", LEASE_S)
    # the job without a prediction counts as the mean of the two others
    assert found_by("default", await catalog.jobs.backlogs(LANE)) == Backlog(queued=3, queued_s=6.0, running=1)


async def test_of_another_tenants_flood_a_job_finds_its_share(catalog: Catalog) -> None:
    for _ in range(10):
        await queued(catalog, standalone_s=2.0)
    await queued(catalog, standalone_s=3.0, tenant="small")
    running = await queued(catalog, standalone_s=9.0)
    assert await catalog.jobs.claim(running.id, "w", LEASE_S)
    assert found_by("default", await catalog.jobs.backlogs(LANE)) == Backlog(queued=11, queued_s=23.0, running=1)
    assert found_by("small", await catalog.jobs.backlogs(LANE)) == Backlog(queued=3, queued_s=7.0, running=1)
    assert found_by("new", await catalog.jobs.backlogs(LANE)) == Backlog(queued=2, queued_s=5.0, running=1)


async def test_deadlines_are_counted_once_jobs_end(catalog: Catalog) -> None:
    assert await catalog.jobs.deadlines(60.0) == (0, 0)
    for limit in (100.0, 1.0, None):
        job = await queued(catalog, deadline_s=limit)
        assert await catalog.jobs.claim(job.id, "w", LEASE_S)
        await change(catalog, job.id, created_at=job.created_at - 10.0)  # accepted ten seconds ago
        assert await catalog.jobs.finish(job.id, 1, a_result(job.id))
        assert (await catalog.jobs.get(job.id)).deadline_met is {100.0: True, 1.0: False, None: None}[limit]
    for waited_s, met in ((10.0, None), (200.0, False)):
        job = await queued(catalog, deadline_s=100.0)
        await change(catalog, job.id, created_at=job.created_at - waited_s)
        assert (await catalog.jobs.cancel(job.id)).deadline_met is met
    await queued(catalog, deadline_s=100.0)  # still waits
    assert await catalog.jobs.deadlines(60.0) == (3, 1)
    assert await catalog.jobs.deadlines(-60.0) == (0, 0)
