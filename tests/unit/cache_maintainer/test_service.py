"""The maintainer on the real in-process ports, asked over real gRPC."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from protos import cache_maintainer_pb2 as pb
from protos.cache_maintainer_pb2_grpc import CacheMaintainerServiceStub
from services.cache_maintainer.service import CacheMaintainerService
from shared import rpc
from shared.backends import Backends
from shared.clock import ManualClock
from shared.errors import BlobMissingError, InvalidRequestError, NotFoundError, StorageFullError, UnavailableError
from shared.messages import EntriesCached, EntriesEvicted, JobSucceeded, Message, StateLost, StateUsed
from shared.service import running
from shared.settings import Settings
from shared.types import CacheMode, IndexFilter, PlanSource, Request
from tests.unit.cached import ENCODER, MODEL, finished_job, near, request, unit


class House:
    """A running maintainer, its ports, a client, and the facts it published."""

    def __init__(self, service: CacheMaintainerService, backends: Backends, stub: CacheMaintainerServiceStub) -> None:
        self.service, self.backends, self.stub = service, backends, stub
        self.facts: list[Message] = []

    async def hear(self, message: Message) -> None:
        self.facts.append(message)

    async def finish(self, asked: Request, seed: int | None = 1, **more: object) -> str:
        vector = None if seed is None else unit(seed)
        job = await finished_job(self.backends, asked, vector, **more)  # type: ignore[arg-type]
        await self.backends.bus.publish(JobSucceeded(job.id, 1))
        await self.settle()
        return job.id

    async def settle(self) -> None:
        """Until facts are delivered and batches are done."""
        await asyncio.sleep(0.05)
        await self.service.flush()
        await asyncio.sleep(0.02)

    async def found(self, seed: int) -> list[str]:
        hits = await self.backends.index.search("whole", unit(seed), IndexFilter(), 10)
        return [hit.entry_id for hit in hits if hit.similarity > 0.99]

    async def steps(self, entry_id: str) -> list[int]:
        return [state.step for state in (await self.backends.catalog.entries.get(entry_id)).states]

    async def has(self, key: str) -> bool:
        try:
            await self.backends.blobs.get(key)
        except BlobMissingError:
            return False
        return True


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@contextlib.asynccontextmanager
async def house(settings: Settings, clock: ManualClock | None = None) -> AsyncIterator[House]:
    service = CacheMaintainerService()
    async with running([service], settings, clock=clock) as process:
        import grpc

        async with grpc.aio.insecure_channel(process.address) as channel:
            made = House(service, process.context.backends, CacheMaintainerServiceStub(channel))
            await made.backends.bus.subscribe([EntriesCached, EntriesEvicted], made.hear)
            yield made


@pytest.fixture
def small(settings: Settings) -> Settings:
    """Room for two entries of five states."""
    return settings.model_copy(update={"large": MODEL, "cache_max_bytes": 1000, "cache_batch_s": 0.0})


async def test_a_finished_job_becomes_an_entry_that_can_be_found(small: Settings) -> None:
    async with house(small) as home:
        job_id = await home.finish(request())
        assert await home.found(1) == [job_id]
        assert await home.steps(job_id) == [5, 10, 15, 20, 25]
        assert home.facts == [EntriesCached((job_id,))]
        stats = await home.stub.Stats(pb.StatsRequest(), timeout=5)
        assert (stats.entries, stats.states, stats.bytes, stats.inserted) == (1, 5, 500, 5)
        assert dict(stats.states_by_step) == {5: 1, 10: 1, 15: 1, 20: 1, 25: 1}


async def test_hearing_twice_changes_nothing(small: Settings) -> None:
    async with house(small) as home:
        job_id = await home.finish(request())
        await home.backends.bus.publish(JobSucceeded(job_id, 1))
        await home.settle()
        assert len(home.facts) == 1
        assert (await home.backends.catalog.entries.totals()).states == 5


async def test_the_least_valuable_states_leave_first(small: Settings) -> None:
    async with house(small) as home:
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
        await home.service.cache.delete_doomed()
        assert await home.has(state)
        clock.advance(small.blob_grace_s + 1)
        await home.service.cache.delete_doomed()
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
        await home.service.cache.delete_doomed()
        assert not await home.has(f"states/{job_id}/1/5.safetensors")
        assert await home.has(f"pictures/{job_id}/1.png")


async def test_an_entry_without_states_answers_repeats_but_is_not_searched(small: Settings) -> None:
    async with house(small) as home:
        job_id = await home.finish(request(), steps=(), source=PlanSource.LATENT)
        unseen = await home.finish(request("no embedding"), seed=None)
        assert await home.found(1) == []
        job = await home.backends.catalog.jobs.get(job_id)
        entry = await home.backends.catalog.entries.exact(job.exact_key, ["tenant:default"])
        assert entry is not None
        assert entry.picture_key == f"pictures/{job_id}/1.png"
        assert await home.steps(unseen) == []


async def test_results_expire_but_an_entry_with_states_keeps_its_picture(
    settings: Settings, clock: ManualClock
) -> None:
    kept_s = settings.model_copy(update={"large": MODEL, "results_keep_s": 0.05, "blob_grace_s": 0.05})
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
        await home.service.cache.delete_doomed()
        assert await home.has(f"pictures/{with_states}/1.png")
        assert not await home.has(f"pictures/{without}/1.png")


async def test_after_a_restart_what_was_missed_is_cached_and_orphans_go(small: Settings) -> None:
    async with house(small) as home:
        await home.service.drain()  # hears nothing from now on
        missed = await finished_job(home.backends, request("a"), unit(1))
        await home.backends.blobs.put("states/nobody/1/5.safetensors", b"x")
        await home.backends.blobs.put("pictures/nobody/1.png", b"x")
    async with house(small.model_copy(update={"blob_grace_s": 0.05})) as home:
        assert await home.found(1) == [missed.id]
        await asyncio.sleep(0.2)
        await home.service.collect()
        assert not await home.has("states/nobody/1/5.safetensors")
        assert not await home.has("pictures/nobody/1.png")
        assert await home.has(f"states/{missed.id}/1/5.safetensors")
        assert await home.has(f"pictures/{missed.id}/1.png")


async def test_blobs_of_a_job_in_work_are_no_orphans(settings: Settings) -> None:
    brief = settings.model_copy(update={"large": MODEL, "blob_grace_s": 0.05})
    async with house(brief) as home:
        job = await finished_job(home.backends, request(), unit(1))
        from dataclasses import replace

        from shared.types import JobState

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
        assert EntriesEvicted((second,)) in home.facts
        assert (await home.stub.Purge(pb.PurgeRequest(entry_id=first), timeout=5)).entries == 1
        assert (await home.stub.Purge(pb.PurgeRequest(everything=True), timeout=5)).entries == 0
        clock.advance(small.blob_grace_s + 1)
        await home.service.cache.delete_doomed()
        assert not await home.has(f"states/{second}/1/5.safetensors")
        assert await home.has(f"pictures/{second}/1.png")  # its job's
        with pytest.raises(InvalidRequestError, match="what"):
            await rpc.call(home.stub.Purge, pb.PurgeRequest(), timeout_s=5)
        with pytest.raises(NotFoundError):
            await rpc.call(home.stub.Purge, pb.PurgeRequest(entry_id="nobody"), timeout_s=5)


async def test_a_large_purge_is_told_in_facts_that_a_broker_takes(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.cache_maintainer.cache.IDS_IN_A_FACT", 1)
    async with house(small) as home:
        ids = {await home.finish(request("a"), 1), await home.finish(request("b"), 2)}
        assert (await home.stub.Purge(pb.PurgeRequest(everything=True), timeout=5)).entries == 2
        await home.settle()
        told = [fact.entry_ids for fact in home.facts if isinstance(fact, EntriesEvicted)]
        assert all(len(some) == 1 for some in told)
        assert {one for some in told for one in some} == ids


async def test_inspect_pages_newest_first(small: Settings) -> None:
    async with house(small) as home:
        first, second = await home.finish(request("a"), 1), await home.finish(request("b"), 2)
        page = await home.stub.Inspect(pb.InspectRequest(page_size=1), timeout=5)
        assert [entry.id for entry in page.entries] == [second]
        rest = await home.stub.Inspect(pb.InspectRequest(page_size=1, page_token=page.next_page_token), timeout=5)
        assert [entry.id for entry in rest.entries] == [first]
        (one,) = (await home.stub.Inspect(pb.InspectRequest(entry_id=first), timeout=5)).entries
        assert (one.prompt, one.width, one.steps) == ("a", 64, 50)
        assert [(state.step, state.score) for state in one.states] == [(k, k) for k in (5, 10, 15, 20, 25)]


async def test_an_index_that_is_away_gets_the_entry_later(small: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    async with house(small) as home:
        add = home.backends.index.add

        async def away(items: object) -> None:
            raise UnavailableError("the index is away")

        monkeypatch.setattr(home.backends.index, "add", away)
        job_id = await home.finish(request())
        assert await home.found(1) == []
        monkeypatch.setattr(home.backends.index, "add", add)
        await home.service.cache.index_pending()
        assert await home.found(1) == [job_id]
        hits = await home.backends.index.search(
            "whole", near(unit(1), 0.9), IndexFilter(owners=("tenant:default",), encoder_hash=ENCODER), 1
        )
        assert hits[0].entry_id == job_id


def failing(method: Callable[..., Any], error: Exception, *, on: int) -> Callable[..., Any]:
    """The port's own method, which fails at its `on`-th call."""
    calls = 0

    async def called(*args: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == on:
            raise error
        return await method(*args, **more)

    return called


async def test_a_batch_that_fails_half_way_leaves_nothing_half_cached(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(small) as home:
        jobs = [await finished_job(home.backends, request(name), unit(i)) for i, name in enumerate("ab", 1)]
        entries = home.backends.catalog.entries
        with monkeypatch.context() as patched:
            patched.setattr(entries, "add", failing(entries.add, UnavailableError("locked"), on=2))
            for job in jobs:
                await home.service.handle(JobSucceeded(job.id, 1))
            with pytest.raises(UnavailableError):
                await home.service.flush()
        first, second = (job.id for job in jobs)
        assert await home.found(1) == [first]
        assert home.service.cache.shelf.bytes == (await entries.totals()).bytes == 500
        await asyncio.sleep(0.02)
        assert EntriesCached((first,)) in home.facts
        await home.service._tidy()  # the next round remembers what failed
        assert await home.found(2) == [second]
        assert home.service.cache.shelf.bytes == (await entries.totals()).bytes == 1000


async def test_an_eviction_that_the_catalog_refuses_leaves_the_index_whole(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(small.model_copy(update={"cache_max_bytes": 500})) as home:
        first = await home.finish(request("a"), 1)
        second = await finished_job(home.backends, request("b"), unit(2))
        entries = home.backends.catalog.entries
        with monkeypatch.context() as patched:
            patched.setattr(entries, "drop_states", failing(entries.drop_states, UnavailableError("locked"), on=1))
            with pytest.raises(UnavailableError):
                await home.service.cache.insert([second.id])
        await home.service.cache.index_pending()
        assert await home.found(1) == [first]
        await home.service.catch_up()
        assert await home.found(2) == [second.id]
        assert await home.found(1) == []
        assert home.service.cache.shelf.bytes == (await entries.totals()).bytes == 500


async def test_jobs_without_latents_become_exact_repeats_even_when_nobody_heard_of_them(small: Settings) -> None:
    async with house(small) as home:
        await home.service.drain()
        missed = await finished_job(home.backends, request("a"), unit(1), steps=())
    async with house(small) as home:
        entry = await home.backends.catalog.entries.exact(missed.exact_key, ["tenant:default"])
        assert entry is not None
        assert await home.backends.catalog.jobs.to_cache() == []
        await home.stub.Purge(pb.PurgeRequest(everything=True), timeout=5)
        await home.service.catch_up()  # what was thrown away stays away
        assert (await home.backends.catalog.entries.totals()).entries == 0


async def test_what_is_purged_frees_its_room_before_the_process_ends(small: Settings) -> None:
    async with house(small) as home:
        job_id = await home.finish(request())
        await home.stub.Purge(pb.PurgeRequest(everything=True), timeout=5)
        assert await home.has(f"states/{job_id}/1/5.safetensors")  # someone may be reading
        blobs = small.data_dir / "blobs"
    assert not list(blobs.rglob("*.safetensors"))
    assert list(blobs.rglob("*.png"))


async def test_a_full_disk_keeps_nobody_from_purging(small: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    from shared.catalog.entries import Entries

    async with house(small) as home:
        job_id = await home.finish(request("a"), 1)
        await home.service.drain()
        await finished_job(home.backends, request("b"), unit(2))  # not cached yet
    full = StorageFullError("catalog: the disk is full", retry_after_s=30.0)

    async def no_room(self: Entries, *args: Any) -> Any:
        raise full

    drop_entries = Entries.drop_entries

    async def room_once_blobs_went(self: Entries, ids: Any) -> Any:
        if await home.has(f"states/{job_id}/1/5.safetensors"):
            raise full
        return await drop_entries(self, ids)

    monkeypatch.setattr(Entries, "add", no_room)
    monkeypatch.setattr(Entries, "used", no_room)
    monkeypatch.setattr(Entries, "drop_entries", room_once_blobs_went)
    async with house(small) as home:  # starts although nothing can be cached
        await home.service.handle(StateUsed(job_id, 5))
        gone = await home.stub.Purge(pb.PurgeRequest(everything=True), timeout=5)
        assert (gone.entries, gone.states) == (1, 5)
        assert not await home.has(f"states/{job_id}/1/5.safetensors")
        assert await home.has(f"pictures/{job_id}/1.png")


async def test_a_lost_state_leaves_once_and_its_entry_goes_on(small: Settings) -> None:
    async with house(small) as home:
        job_id = await home.finish(request())
        key = f"states/{job_id}/1/25.safetensors"
        lost = StateLost(job_id, 25, key)
        await home.service.handle(StateLost(job_id, 25, f"states/{job_id}/2/25.safetensors"))  # another attempt's
        assert await home.steps(job_id) == [5, 10, 15, 20, 25]
        for _ in range(2):
            await home.service.handle(lost)
        assert await home.steps(job_id) == [5, 10, 15, 20]
        assert home.service.cache.shelf.bytes == (await home.backends.catalog.entries.totals()).bytes == 400
        await home.settle()
        assert [fact for fact in home.facts if isinstance(fact, EntriesEvicted)] == [EntriesEvicted((), (job_id,))]
        for step in (5, 10, 15, 20):
            await home.service.handle(StateLost(job_id, step, f"states/{job_id}/1/{step}.safetensors"))
        assert await home.found(1) == []
        stats = await home.stub.Stats(pb.StatsRequest(), timeout=5)
        assert (stats.entries, stats.states, stats.bytes, stats.evicted, stats.holes) == (1, 0, 0, 0, 0)


async def test_an_entry_whose_picture_is_lost_leaves_whole(small: Settings) -> None:
    async with house(small) as home:
        job_id = await home.finish(request())
        await home.service.handle(StateLost(job_id, 0, "pictures/another.png"))
        assert await home.found(1) == [job_id]
        await home.service.handle(StateLost(job_id, 0, f"pictures/{job_id}/1.png"))
        assert await home.found(1) == []
        assert (await home.backends.catalog.entries.totals()).entries == 0


async def test_blobs_of_a_job_that_finishes_while_orphans_are_looked_for_stay(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(settings.model_copy(update={"large": MODEL, "blob_grace_s": 0.05})) as home:
        await home.service.drain()
        jobs, finish = home.backends.catalog.jobs, home.backends.catalog.jobs.finish
        waiting: list[tuple[Any, ...]] = []

        async def later(*args: Any) -> bool:
            waiting.append(args)
            return True

        with monkeypatch.context() as patched:
            patched.setattr(jobs, "finish", later)
            job = await finished_job(home.backends, request(), unit(1))
        get = jobs.get

        async def finishing(job_id: str) -> Any:
            if waiting:
                await finish(*waiting.pop())
            return await get(job_id)

        monkeypatch.setattr(jobs, "get", finishing)  # between what is named and what is in work
        await asyncio.sleep(0.2)
        await home.service.collect()
        assert not waiting
        assert await home.has(f"states/{job.id}/1/5.safetensors")
        assert await home.has(f"pictures/{job.id}/1.png")


async def test_an_entry_that_is_evicted_while_the_index_takes_it_does_not_come_back(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(small) as home:
        index = home.backends.index
        add, asked, go_on = index.add, asyncio.Event(), asyncio.Event()
        with monkeypatch.context() as patched:
            patched.setattr(index, "add", failing(add, UnavailableError("away"), on=1))
            await home.finish(request())

        async def slow(items: Any) -> None:
            asked.set()
            await go_on.wait()
            await add(items)

        monkeypatch.setattr(index, "add", slow)
        pending = asyncio.create_task(home.service.cache.index_pending())
        await asked.wait()
        purge = asyncio.create_task(home.service.cache.purge(lambda entry: True))
        await asyncio.sleep(0.05)
        go_on.set()
        await asyncio.gather(pending, purge)
        assert await home.found(1) == []


async def test_an_index_on_a_server_is_repaired_while_collecting(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the catalog's write and before the index's, nobody else would ever index the entry."""
    async with house(small) as home:
        job_id = await home.finish(request())
        await home.backends.index.remove([job_id])
        await home.service.collect()
        assert await home.found(1) == []  # in memory it is filled at the start, and only this process writes to it
        monkeypatch.setattr(home.backends.index, "process_local", False)
        await home.service.collect()
        assert await home.found(1) == [job_id]
