"""Rerouting: move hits that wait for a model that no worker runs any more to a lane with consumers
(docs/architecture.md, Services)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import replace

from shared.bus import Bus
from shared.catalog import Catalog
from shared.domain.messages import lane_of, refine_lane
from shared.domain.plan_rules import lane_for, reroute_plan
from shared.domain.types import Job
from shared.runtime.telemetry import log
from shared.service.dispatch import dispatch

AT_A_TIME = 100
"""Rows per read. All pages are read, because jobs that cannot move may come before jobs that can."""


async def reroute(catalog: Catalog, bus: Bus, served: Collection[str], assigned: Collection[str] | None) -> int:
    """Move waiting jobs, and return how many moved. Their tasks in the old lanes lose the claim."""
    if assigned is None:
        return 0
    moved = 0
    # with one served model no worker consumes `refine`; jobs there are from a run with other settings
    taken = {*(lane_of(model) for model in assigned), *((refine_lane(),) if len(served) > 1 else ())}
    for left_alone in await catalog.jobs.lanes() - taken:
        async for job in _waiting(catalog, left_alone):
            if (plan := reroute_plan(job.request, job.plan, assigned)) is None:
                continue
            lane = lane_for(job.request, plan, served)
            if lane == job.lane:
                continue
            rerouted = catalog.jobs.reroute(job.id, job.attempt, lane, plan)
            done = await dispatch(bus, replace(job, lane=lane, plan=plan), catalog.jobs.confirm, write=rerouted)
            moved += done.written
            if done.error is not None:
                log("gateway").warning(done.trouble, job=job.id, error=str(done.error))
    if moved:
        log("gateway").info("jobs moved to lanes with workers", jobs=moved)
    return moved


async def _waiting(catalog: Catalog, lane: str) -> AsyncIterator[Job]:
    """Yield the lane's queued jobs, oldest first."""
    after = ""
    while page := await catalog.jobs.waiting(lane, AT_A_TIME, after):
        for job in page:
            yield job
        after = page[-1].id
