"""What the catalog does for those who sweep, expire and cache: nothing is forgotten, nothing kept for ever."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from shared.catalog import Catalog
from shared.domain.types import JobState
from tests.contracts.nouns import EXPIRED_S, LEASE_S, a_job, a_result, accepted, an_entry, finished, latents_of


async def test_unconfirmed_jobs_are_sent_again(catalog: Catalog, replica: Catalog) -> None:
    sent, lost = await accepted(catalog), await accepted(catalog)
    await catalog.jobs.confirm([sent.id])
    assert await catalog.jobs.to_requeue(unconfirmed_after_s=30.0) == []
    await asyncio.sleep(1.1)
    sweeps = await asyncio.gather(*(each.jobs.to_requeue(unconfirmed_after_s=1.0) for each in (catalog, replica)))
    assert [job.id for jobs in sweeps for job in jobs] == [lost.id]  # by one of them
    await catalog.jobs.confirm([lost.id])
    assert await catalog.jobs.to_requeue(unconfirmed_after_s=-1.0) == []


async def test_what_waits_for_long_is_sent_again_whatever_was_confirmed(catalog: Catalog, replica: Catalog) -> None:
    job, running = await accepted(catalog), await accepted(catalog)
    await catalog.jobs.confirm([job.id, running.id])
    await catalog.jobs.claim(running.id, "w1", LEASE_S)
    assert await catalog.jobs.to_requeue(unconfirmed_after_s=60.0, anyhow_after_s=60.0) == []
    await asyncio.sleep(2.1)
    asked = [each.jobs.to_requeue(unconfirmed_after_s=60.0, anyhow_after_s=2.0) for each in (catalog, replica)]
    assert [each.id for jobs in await asyncio.gather(*asked) for each in jobs] == [job.id]  # by one of them, and once
    assert await catalog.jobs.to_requeue(unconfirmed_after_s=60.0, anyhow_after_s=2.0) == []


async def test_jobs_of_dead_workers_are_sent_again(catalog: Catalog, replica: Catalog) -> None:
    job, alive = await accepted(catalog), await accepted(catalog)
    await catalog.jobs.confirm([job.id, alive.id])
    await catalog.jobs.claim(alive.id, "w2", LEASE_S)
    await catalog.jobs.claim(job.id, "w1", EXPIRED_S)
    sweeps = await asyncio.gather(*(each.jobs.to_requeue(unconfirmed_after_s=60.0) for each in (catalog, replica)))
    (requeued,) = [job for jobs in sweeps for job in jobs]
    assert (requeued.id, requeued.state, requeued.attempt, requeued.crashes) == (job.id, JobState.QUEUED, 1, 1)
    assert not await catalog.jobs.finish(job.id, 1, a_result(job.id))  # the dead one was only slow: too late
    again = await catalog.jobs.claim(job.id, "w2", LEASE_S)
    assert again is not None
    assert (again.attempt, again.crashes) == (2, 1)


async def test_an_embedded_start_queues_what_was_running(catalog: Catalog) -> None:
    jobs = [await accepted(catalog, id=f"job{n}") for n in range(4)]
    await catalog.jobs.claim("job0", "box:1", LEASE_S)
    await catalog.jobs.claim("job1", "other%:1", LEASE_S)
    await catalog.jobs.claim("job3", "box:1", LEASE_S)
    await catalog.jobs.cancel("job3")
    await catalog.jobs.confirm([job.id for job in jobs])
    recovered = await catalog.jobs.recover()
    assert [(job.id, job.crashes) for job in recovered] == [("job0", 1), ("job1", 1), ("job2", 0)]
    assert {job.state for job in recovered} == {JobState.QUEUED}


async def test_a_worker_that_was_taken_for_dead_and_lives_takes_its_crash_back(
    catalog: Catalog, replica: Catalog
) -> None:
    job = await accepted(catalog)
    slow = await catalog.jobs.claim(job.id, "slow", EXPIRED_S)
    assert slow is not None
    assert not await catalog.jobs.survived(job.id, slow.crashes)  # nothing was counted yet
    crashed = await replica.jobs.claim(job.id, "crashes", EXPIRED_S)
    assert crashed is not None
    again = await replica.jobs.claim(job.id, "third", LEASE_S)
    assert again is not None
    assert (crashed.crashes, again.crashes) == (1, 2)
    assert await catalog.jobs.survived(job.id, slow.crashes)
    row = await replica.jobs.get(job.id)
    assert (row.state, row.attempt, row.crashes) == (JobState.RUNNING, 3, 1)  # the other's counts on
    await replica.jobs.cancel(job.id)
    assert not await catalog.jobs.survived(job.id, slow.crashes)  # it has ended as it has


async def test_expiry_returns_the_blobs_nobody_names(catalog: Catalog) -> None:
    alone, cached, repeated = [await finished(catalog) for _ in range(3)]
    waiting = await accepted(catalog)
    await catalog.entries.add(an_entry(job_id=cached.id), {})
    repeat = dataclasses.replace(a_job(), state=JobState.SUCCEEDED, result=repeated.result)
    assert await catalog.jobs.expire(60.0) == []
    await asyncio.sleep(1.1)
    await catalog.jobs.accept(repeat, key_lifetime_s=60.0)
    uncached = [*latents_of(alone), *latents_of(repeated)]
    assert uncached
    assert await catalog.jobs.expire(1.0) == sorted([f"pictures/{alone.id}/1.png", *uncached])
    left = {job.id for job in (await catalog.jobs.list(limit=10))[0]}
    assert left == {waiting.id, repeat.id}
    await catalog.entries.drop_entries([entry.id for entry in (await catalog.entries.page(9))[0]])
    assert await catalog.jobs.expire(-1.0) == [f"pictures/{repeated.id}/1.png"]


async def test_expiry_frees_the_key_of_a_job_that_is_gone(catalog: Catalog) -> None:
    key: dict[str, Any] = {"idempotency_key": "k", "caller": "a", "body_hash": "h", "key_lifetime_s": 60.0}
    first, _ = await catalog.jobs.accept(a_job(), **key)
    await catalog.jobs.cancel(first.id)
    await catalog.jobs.expire(-1.0)
    assert (await catalog.jobs.accept(a_job(), **{**key, "body_hash": "other"}))[1]


async def test_captured_latents_wait_to_be_cached_or_dropped(catalog: Catalog) -> None:
    cached, dropped, waiting = sorted([await finished(catalog) for _ in range(3)], key=lambda job: job.id)
    assert await catalog.jobs.to_cache() == [cached.id, dropped.id, waiting.id]
    await catalog.entries.add(an_entry(job_id=cached.id), {})
    keys = [f"states/{dropped.id}/1/{step}" for step in (5, 10)]
    assert await catalog.entries.referenced(keys) == set(keys)
    assert await catalog.jobs.drop_captured([dropped.id]) == sorted(keys)
    assert await catalog.entries.referenced(keys) == set()
    assert await catalog.jobs.to_cache() == [waiting.id]
    assert set(latents_of(waiting)) < set(await catalog.jobs.expire(-1.0))
    assert await catalog.jobs.to_cache() == []
