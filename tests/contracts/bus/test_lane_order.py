"""Workers that take the most urgent job of a lane finish every job, also where one of them died, over any servers."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.gateway.sweeper import Sweeper
from services.gpu_worker.service import GpuWorkerService
from shared.blobs import open_blobs
from shared.bus import open_bus
from shared.catalog import Catalog, open_catalog
from shared.domain.messages import GenerateImage, lane_of
from shared.domain.types import JobState, Plan, PlanSource
from shared.index import open_index
from shared.runtime.clock import SystemClock
from shared.runtime.settings import Settings
from shared.service import Context
from shared.service.backends import Backends
from shared.service.dispatch import dispatch
from tests.contracts.bus.conftest import SOON_S, nothing_for
from tests.contracts.databases import new_database
from tests.contracts.nouns import a_job
from tests.contracts.servers import url_of

MODEL = "noop"
JOBS = 16


@pytest.fixture(params=["one process", "cluster"])
async def backends(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backends]:
    async with contextlib.AsyncExitStack() as stack:
        cluster = request.param == "cluster"
        url = await stack.enter_async_context(new_database()) if cluster else f"sqlite:///{tmp_path}/catalog.db"
        opened = Backends(
            await open_bus(url_of("rabbitmq") if cluster else "inprocess:"),
            await open_index("memory:"),
            await open_blobs(f"file:{tmp_path}/blobs"),
            await open_catalog(url),
        )
        yield opened
        await opened.close()


async def accepted(catalog: Catalog, limit: float | None) -> Any:
    job = a_job(lane=lane_of(MODEL))
    request = replace(job.request, steps=4, deadline_s=limit)
    job = replace(job, request=request, plan=Plan(PlanSource.NOISE, MODEL), standalone_s=0.02)
    return (await catalog.jobs.accept(job))[0]


async def test_all_jobs_finish_although_a_worker_died_with_the_tasks_of_others(
    backends: Backends, tmp_path: Path
) -> None:
    draw, jobs = random.Random(3), backends.catalog.jobs
    rows = [await accepted(backends.catalog, draw.choice([None, 60.0, 120.0, 600.0])) for _ in range(JOBS)]
    for row in rows:
        assert (await dispatch(backends.bus, row, jobs.confirm)).sent
    # the dead worker held three tasks: it had claimed a more urgent job with one, its own job with another, none with
    # the third
    receiver = await backends.bus.receive([lane_of(MODEL)], prefetch=3)
    deliveries = [await asyncio.wait_for(receiver.get(), SOON_S) for _ in range(3)]
    held = [one.message.job_id for one in deliveries if isinstance(one.message, GenerateImage)]
    (waiting,) = (await jobs.next_of_each(lane_of(MODEL), JOBS, "urgent")).values()
    urgent = next(name for name in waiting if name not in held)
    assert await jobs.claim_new(urgent, lane_of(MODEL), "dead", 0.05, own_task=False)
    own = held[1]
    assert await jobs.claim_new(own, lane_of(MODEL), "dead", 0.05, own_task=True)
    await receiver.close()

    settings = Settings(
        data_dir=tmp_path, large="noop:?step_ms=2", metrics_listen="", max_rows=2, lane_order="urgent",
        scheduler="slack", set_aside=True,
    )  # fmt: skip
    context = Context(settings, backends, SystemClock())
    sweeper = Sweeper(backends.catalog, backends.bus, 0.1, lambda job: None)
    workers = [GpuWorkerService(), GpuWorkerService(2)]
    for worker in workers:
        await worker.start(context)
    sweeping = asyncio.create_task(sweeper.run())
    try:
        async with asyncio.timeout(60.0):
            while True:
                found = [await jobs.get(row.id) for row in rows]
                if all(job.state.final for job in found):
                    break
                await asyncio.sleep(0.02)
        assert [job.state for job in found] == [JobState.SUCCEEDED] * JOBS
        assert {job.id for job in found if job.attempt > 1} == {urgent, own}
        assert all(job.failures == 0 for job in found)
    finally:
        sweeping.cancel()
        for worker in workers:
            await worker.drain(5.0)
            await worker.stop()
    # duplicates were acknowledged, and nothing is left
    left = await backends.bus.receive([lane_of(MODEL)], prefetch=1)
    assert await nothing_for(left)
    await left.close()
    assert [letter for letter in await backends.bus.dead_letters() if letter.lane == lane_of(MODEL)] == []
