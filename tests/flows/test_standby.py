"""Two cache maintainers over one server's catalog: one writes, the other takes over when it is gone."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from protos import cache_maintainer_pb2 as pb
from services.cache_maintainer.service import CacheMaintainerService
from shared.domain.errors import UnavailableError
from shared.domain.messages import JobSucceeded, StateUsed
from shared.runtime.settings import Settings
from shared.service import Context
from shared.service.backends import Backends
from tests.unit.cached import finished_job, request, unit

LEASE_S = 1.5


async def _maintainer(backends: Backends, settings: Settings) -> CacheMaintainerService:
    service = CacheMaintainerService()
    changed = settings.model_copy(update={"maintainer_lease_s": LEASE_S, "cache_batch_s": 0.01, "blob_grace_s": 0.5})
    await service.start(Context(changed, replace(backends)))
    return service


async def _finish(backends: Backends, prompt: str) -> str:
    job = await finished_job(backends, request(prompt), unit(1))
    await backends.bus.publish(JobSucceeded(job.id, 1))
    return job.id


async def _cached(backends: Backends, job_id: str, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while not await backends.catalog.entries.by_ids([job_id]):
            await asyncio.sleep(0.02)


async def test_the_second_stands_by_and_takes_over_what_the_first_left(backends: Backends, settings: Settings) -> None:
    first, second = await _maintainer(backends, settings), await _maintainer(backends, settings)
    with pytest.raises(UnavailableError, match="AFTERIMAGE_CACHE_MAINTAINER_ADDRESS"):
        await second.Stats(pb.StatsRequest(), None)
    await _cached(backends, await _finish(backends, "a red cube"), 5.0)
    assert len(first.cache.shelf)

    await _die(first)
    left = await _finish(backends, "a blue cube")  # nobody hears of it
    await _cached(backends, left, LEASE_S + 5.0)
    held, pictures = second.cache.shelf, second.cache.pictures
    assert pictures is not None
    assert len(held) + len(pictures.shelf) == len(await backends.catalog.entries.states())  # the first one's too
    await _cached(backends, await _finish(backends, "a green cube"), 5.0)
    await second.drain()
    await second.stop()


async def test_a_planned_end_hands_over_at_once(backends: Backends, settings: Settings) -> None:
    first, second = await _maintainer(backends, settings), await _maintainer(backends, settings)
    await first.drain()
    await first.stop()
    await asyncio.sleep(LEASE_S / 6 + 0.4)
    await _cached(backends, await _finish(backends, "a red cube"), 5.0)
    assert len(second.cache.shelf)
    await second.drain()
    await second.stop()


async def test_one_that_slept_through_its_lease_writes_no_more(backends: Backends, settings: Settings) -> None:
    first, second = await _maintainer(backends, settings), await _maintainer(backends, settings)
    for task in first._standing:
        task.cancel()  # as if its process stood still; then it goes on
    await asyncio.sleep(LEASE_S + 0.8)
    before = len(first.cache.shelf)
    await _cached(backends, await _finish(backends, "a red cube"), 5.0)
    await first._work.guarded(first.catch_up)
    await first._work.guarded(first.flush)
    assert len(first.cache.shelf) == before
    assert len(second.cache.shelf)
    for service in (second, first):
        await service.stop()


async def test_uses_that_one_heard_before_it_stepped_down_are_written(backends: Backends, settings: Settings) -> None:
    first, second = await _maintainer(backends, settings), await _maintainer(backends, settings)
    job_id = await _finish(backends, "a red cube")
    await _cached(backends, job_id, 5.0)
    for task in (*first._standing, *first._tasks):
        task.cancel()  # as if its process stood still; then it goes on
    await asyncio.gather(*first._standing, *first._tasks, return_exceptions=True)
    for _ in range(3):
        await first.handle(StateUsed(job_id, 5))
    await asyncio.sleep(LEASE_S + 0.8)
    assert second._leads
    await first._change(held=False)
    entry = await backends.catalog.entries.get(job_id)
    assert [state.uses for state in entry.states if state.step == 5] == [3]
    with pytest.raises(UnavailableError, match="does not hold it any more"):
        await first.cache.insert([(await finished_job(backends, request("a blue cube"), unit(2))).id])
    for service in (second, first):
        await service.stop()


async def _die(service: CacheMaintainerService) -> None:
    """As SIGKILL ends it: nothing is flushed, nothing given up."""
    for task in (*service._standing, *service._tasks):
        task.cancel()
    await asyncio.gather(*service._standing, *service._tasks, return_exceptions=True)
    await service._subscription.close()
