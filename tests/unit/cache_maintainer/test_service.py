"""The maintainer on the real in-process ports, asked over real gRPC."""

from __future__ import annotations

import asyncio

import pytest

from protos import cache_maintainer_pb2 as pb
from shared.domain.errors import InvalidRequestError, NotFoundError
from shared.domain.messages import EntriesCached, EntriesEvicted, JobCancelled, JobSucceeded, StateUsed
from shared.domain.types import CacheMode, JobState, PlanSource
from shared.runtime import rpc
from shared.runtime.clock import ManualClock
from shared.runtime.settings import Settings
from shared.runtime.telemetry import METRICS
from tests.contracts.nouns import a_job
from tests.unit.cache_maintainer.house import House, house
from tests.unit.cached import MODEL, finished_job, request, unit
from tests.unit.facts import heard


async def test_a_finished_job_becomes_an_entry_that_can_be_found(small: Settings) -> None:
    async with house(small) as home:
        job_id = await home.finish(request())
        assert await home.found(1) == [job_id]
        assert await home.steps(job_id) == [5, 10, 15, 20, 25]
        assert home.facts == [EntriesCached((job_id,))]
        stats = await home.stub.Stats(pb.StatsRequest(), timeout=5)
        assert (stats.entries, stats.states, stats.bytes, stats.inserted) == (1, 5, 500, 5)
        assert dict(stats.states_by_step) == {5: 1, 10: 1, 15: 1, 20: 1, 25: 1}


async def test_the_gauges_say_what_the_catalog_counts_and_it_is_not_asked_after_each_batch(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def shown(home: House) -> bool:
        totals = await home.backends.catalog.entries.totals()
        gauges = (METRICS.cache_entries, METRICS.cache_states, METRICS.cache_bytes, METRICS.cache_pictures)
        values = [one._value.get() for one in gauges]
        return values == [totals.entries, totals.states, totals.bytes, totals.pictures] and totals.entries > 0

    async with house(small) as home:
        with monkeypatch.context() as patched:
            patched.setattr(home.service.cache, "measure", None)
            first = await home.finish(request("a"), 1)
            assert await shown(home)
            for number in (2, 3, 4):  # the first ones' states are evicted
                await home.finish(request(str(number)), number)
            assert await shown(home)
            await home.stub.Purge(pb.PurgeRequest(entry_id=first), timeout=5)
            assert await shown(home)
        METRICS.cache_entries.set(0)
        await home.service.collect()
        assert await shown(home)


async def test_hearing_twice_changes_nothing(small: Settings) -> None:
    async with house(small) as home:
        job_id = await home.finish(request())
        await home.backends.bus.publish(JobSucceeded(job_id, 1))
        await home.settle()
        assert len(home.facts) == 1
        assert (await home.backends.catalog.entries.totals()).states == 5


async def test_the_least_valuable_states_leave_first(small: Settings) -> None:
    async with house(small.model_copy(update={"eviction_policy": "lcbfu"})) as home:
        first, second = await home.finish(request("a"), 1), await home.finish(request("b"), 2)
        for _ in range(30):
            await home.backends.bus.publish(StateUsed(second, 5))
        await home.settle()
        await home.finish(request("c"), 3)
        # five of the never used leave: K = 5 of the first, then 10, 10, 15, 15 by f·K, the older first
        assert await home.steps(first) == [20, 25]
        assert await home.steps(second) == [5, 20, 25]
        assert await home.found(1) == [first]
        await home.finish(request("d"), 4)
        await home.finish(request("e"), 5)
        assert (await home.backends.catalog.entries.totals()).bytes <= 1000
        assert await home.found(2) == [second]  # its K = 5 was used 30 times
        assert 5 in await home.steps(second)
        stats = await home.stub.Stats(pb.StatsRequest(), timeout=5)
        assert stats.evicted == 15
        assert stats.holes > 0
        assert stats.uses_by_step[5] == 30


async def test_evicted_blobs_live_a_grace_longer_and_the_picture_stays(small: Settings, clock: ManualClock) -> None:
    async with house(small.model_copy(update={"eviction_policy": "fifo"}), clock) as home:
        first = await home.finish(request("a"), 1)
        clock.advance(1)
        await home.finish(request("b"), 2)
        clock.advance(1)
        await home.finish(request("c"), 3)
        state, picture = f"states/{first}/1/25.safetensors", f"pictures/{first}/1.png"
        assert await home.found(1) == []
        assert EntriesEvicted((first,)) in home.facts
        assert await home.has(state)
        await home.service.cache.doomed.delete()
        assert await home.has(state)
        clock.advance(small.blob_grace_s + 1)
        await home.service.cache.doomed.delete()
        assert not await home.has(state)
        assert await home.has(picture)
        assert await home.steps(first) == []  # still answers its exact repeat


async def test_a_batch_larger_than_the_cache(settings: Settings) -> None:
    tiny = settings.model_copy(update={"large": MODEL, "cache_max_bytes": 250})
    async with house(tiny) as home:
        job_id = await home.finish(request())
        assert await home.steps(job_id) == [20, 25]
        assert (await home.backends.catalog.entries.totals()).bytes == 200


@pytest.mark.parametrize("mode", [CacheMode.READ, CacheMode.OFF])
async def test_what_may_not_be_kept_is_dropped(small: Settings, mode: CacheMode, clock: ManualClock) -> None:
    async with house(small, clock) as home:
        job_id = await home.finish(request(cache=mode))
        assert await home.found(1) == []
        assert await home.backends.catalog.jobs.to_cache() == []
        clock.advance(small.blob_grace_s + 1)
        await home.service.cache.doomed.delete()
        assert not await home.has(f"states/{job_id}/1/5.safetensors")
        assert await home.has(f"pictures/{job_id}/1.png")


async def test_an_entry_without_states_answers_repeats_but_is_not_searched(small: Settings) -> None:
    async with house(small) as home:
        job_id = await home.finish(request(), steps=(), source=PlanSource.LATENT)
        unseen = await home.finish(request("no embedding"), seed=None)
        assert await home.found(1) == []
        job = await home.backends.catalog.jobs.get(job_id)
        entry = await home.backends.catalog.entries.exact(job.exact_key, "default", ["tenant:default"])
        assert entry is not None
        assert entry.picture_key == f"pictures/{job_id}/1.png"
        assert await home.steps(unseen) == []


async def test_results_expire_but_an_entry_with_states_keeps_its_picture(
    settings: Settings, clock: ManualClock
) -> None:
    changes = {"large": MODEL, "results_keep_s": 0.05, "blob_grace_s": 0.05, "image_tier": "off"}
    kept_s = settings.model_copy(update=changes)
    async with house(kept_s) as home:
        with_states = await home.finish(request("a"), 1)
        without = await home.finish(request("b"), 2, steps=())
        await asyncio.sleep(0.2)
        await home.service.collect()
        with pytest.raises(NotFoundError):
            await home.backends.catalog.jobs.get(with_states)
        with pytest.raises(NotFoundError):
            await home.backends.catalog.entries.get(without)
        await asyncio.sleep(0.1)
        await home.service.cache.doomed.delete()
        assert await home.has(f"pictures/{with_states}/1.png")
        assert not await home.has(f"pictures/{without}/1.png")


async def test_a_job_that_nobody_begins_is_cancelled_and_said_to_be(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.cache_maintainer.upkeep.MOST_DEADLINE_S", 0.05)
    async with house(settings) as home:
        await home.backends.bus.subscribe([JobCancelled], home.hear)
        await home.backends.catalog.jobs.accept(waiting := a_job())
        await asyncio.sleep(0.1)
        await home.service.collect()
        await heard(home.backends.bus)
        assert home.facts == [JobCancelled(waiting.id)]
        assert (await home.backends.catalog.jobs.get(waiting.id)).state is JobState.CANCELLED


async def test_after_a_restart_what_was_missed_is_cached_and_orphans_go(small: Settings) -> None:
    async with house(small) as home:
        await home.service.drain()  # hears nothing from now on
        missed = await finished_job(home.backends, request("a"), unit(1))
        await home.backends.blobs.put("states/nobody/1/5.safetensors", b"x")
        await home.backends.blobs.put("pictures/nobody/1.png", b"x")
    async with house(small.model_copy(update={"blob_grace_s": 0.05, "quarantine_s": 0.0})) as home:
        assert await home.found(1) == [missed.id]
        await asyncio.sleep(0.2)
        await home.service.collect()
        assert not await home.has("states/nobody/1/5.safetensors")
        assert not await home.has("pictures/nobody/1.png")
        assert await home.has(f"states/{missed.id}/1/5.safetensors")
        assert await home.has(f"pictures/{missed.id}/1.png")


async def test_blobs_of_a_job_in_work_are_no_orphans(settings: Settings) -> None:
    brief = settings.model_copy(update={"large": MODEL, "blob_grace_s": 0.05, "quarantine_s": 0.0})
    async with house(brief) as home:
        job = await finished_job(home.backends, request(), unit(1))
        from dataclasses import replace

        from shared.domain.types import JobState

        running_job = replace(job, id="j" * 26, state=JobState.QUEUED, result=None)
        await home.backends.catalog.jobs.accept(running_job, key_lifetime_s=60)
        await home.backends.blobs.put(f"states/{running_job.id}-1-5.safetensors", b"x")
        await asyncio.sleep(0.2)
        await home.service.collect()
        assert await home.has(f"states/{running_job.id}-1-5.safetensors")


async def test_a_lower_budget_takes_effect_at_the_next_start(small: Settings) -> None:
    async with house(small) as home:
        await home.finish(request("a"), 1)
    async with house(small.model_copy(update={"cache_max_bytes": 300})) as home:
        assert (await home.backends.catalog.entries.totals()).bytes <= 300


async def test_purge_by_entry_tenant_and_everything(small: Settings, clock: ManualClock) -> None:
    async with house(small, clock) as home:
        first = await home.finish(request("a"), 1)
        second = await home.finish(request("b", tenant="other"), 2)
        gone = await home.stub.Purge(pb.PurgeRequest(tenant="other"), timeout=5)
        assert (gone.entries, gone.states, gone.bytes) == (1, 5, 500)
        assert await home.found(2) == []
        await heard(home.backends.bus)
        assert EntriesEvicted((second,)) in home.facts
        assert (await home.stub.Purge(pb.PurgeRequest(entry_id=first), timeout=5)).entries == 1
        assert (await home.stub.Purge(pb.PurgeRequest(everything=True), timeout=5)).entries == 0
        clock.advance(small.blob_grace_s + 1)
        await home.service.cache.doomed.delete()
        assert not await home.has(f"states/{second}/1/5.safetensors")
        assert await home.has(f"pictures/{second}/1.png")  # its job's
        with pytest.raises(InvalidRequestError, match="what"):
            await rpc.call(home.stub.Purge, pb.PurgeRequest(), timeout_s=5)
        with pytest.raises(NotFoundError):
            await rpc.call(home.stub.Purge, pb.PurgeRequest(entry_id="nobody"), timeout_s=5)


async def test_a_large_purge_is_told_in_facts_that_a_broker_takes(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.cache_maintainer.cache_index.IDS_IN_A_FACT", 1)
    async with house(small) as home:
        ids = {await home.finish(request("a"), 1), await home.finish(request("b"), 2)}
        assert (await home.stub.Purge(pb.PurgeRequest(everything=True), timeout=5)).entries == 2
        await home.settle()
        told = [fact.entry_ids for fact in home.facts if isinstance(fact, EntriesEvicted)]
        assert all(len(some) == 1 for some in told)
        assert {one for some in told for one in some} == ids


async def test_inspect_pages_newest_first(small: Settings) -> None:
    async with house(small.model_copy(update={"eviction_policy": "lcbfu"})) as home:
        first, second = await home.finish(request("a"), 1), await home.finish(request("b"), 2)
        page = await home.stub.Inspect(pb.InspectRequest(page_size=1), timeout=5)
        assert [entry.id for entry in page.entries] == [second]
        rest = await home.stub.Inspect(pb.InspectRequest(page_size=1, page_token=page.next_page_token), timeout=5)
        assert [entry.id for entry in rest.entries] == [first]
        (one,) = (await home.stub.Inspect(pb.InspectRequest(entry_id=first), timeout=5)).entries
        assert (one.prompt, one.width, one.steps) == ("a", 64, 50)
        assert [(state.step, state.score) for state in one.states] == [(k, k) for k in (5, 10, 15, 20, 25)]


@pytest.mark.parametrize("model", ["🦊" * 64, "@/", "~/elsewhere", "owner/name"])
async def test_a_model_that_is_not_served_is_refused_and_not_looked_up(small: Settings, model: str) -> None:
    """It was looked up as a path and at the hub. Two such names ended as internal errors."""
    async with house(small) as home:
        with pytest.raises(InvalidRequestError, match=r"model: must be a served model: \w+"):
            await rpc.call(home.stub.Quality, pb.QualityRequest(model=model), timeout_s=5)
