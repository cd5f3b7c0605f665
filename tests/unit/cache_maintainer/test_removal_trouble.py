"""Entries and states leave whole and once, however the disk, the index or the leadership fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from protos import cache_maintainer_pb2 as pb
from shared.catalog import Entries
from shared.domain.errors import StorageFullError, UnavailableError
from shared.domain.messages import EntriesEvicted, StateLost, StateUsed
from shared.runtime.settings import Settings
from shared.service.leadership import Leadership
from tests.unit.cache_maintainer.house import failing, house
from tests.unit.cached import finished_job, request, unit


async def test_what_is_purged_frees_its_room_before_the_process_ends(small: Settings) -> None:
    async with house(small) as home:
        job_id = await home.finish(request())
        await home.stub.Purge(pb.PurgeRequest(everything=True), timeout=5)
        assert await home.has(f"states/{job_id}/1/5.safetensors")  # someone may be reading
        blobs = small.data_dir / "blobs"
    assert not list(blobs.rglob("*.safetensors"))
    assert list(blobs.rglob("*.png"))


async def test_a_full_disk_keeps_nobody_from_purging(small: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    from shared.catalog.entries.entries import Entries

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


async def test_states_leave_with_the_lost_one_that_they_need_also_after_a_restart(small: Settings) -> None:
    async with house(small) as home:
        job_id = await home.finish(request(), base=15)
        await home.service.handle(StateUsed(job_id, 25))
        await home.service.handle(StateLost(job_id, 25, f"states/{job_id}/1/25.safetensors"))
        assert await home.steps(job_id) == [5, 10, 15, 20]
        await home.settle()
        uses = {state.step: state.uses for state in (await home.backends.catalog.entries.get(job_id)).latents}
        assert uses == {5: 0, 10: 0, 15: 1, 20: 0}  # to start from 25, a job read 15 too
    async with house(small) as home:
        assert {state.step: state.needs for state in home.service.cache.shelf} == {5: 15, 10: 15, 15: 0, 20: 15}
        await home.service.handle(StateLost(job_id, 15, f"states/{job_id}/1/15.safetensors"))
        assert await home.steps(job_id) == []
        assert home.service.cache.shelf.bytes == (await home.backends.catalog.entries.totals()).bytes == 0


async def test_an_entry_whose_picture_is_lost_leaves_whole(small: Settings) -> None:
    async with house(small) as home:
        job_id = await home.finish(request())
        await home.service.handle(StateLost(job_id, 0, "pictures/another.png"))
        assert await home.found(1) == [job_id]
        await home.service.handle(StateLost(job_id, 0, f"pictures/{job_id}/1.png"))
        assert await home.found(1) == []
        assert (await home.backends.catalog.entries.totals()).entries == 0


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


async def test_what_is_doomed_goes_before_the_lease_does(small: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a catalog that others share; everyone who reads the blobs is in this process."""
    monkeypatch.setattr(Leadership, "alone", False)
    async with house(small) as home:
        job_id = await home.finish(request())
        doomed = f"states/{job_id}-9-5.safetensors"
        await home.backends.blobs.put(doomed, b"evicted")
        home.service.cache.doomed.add([doomed])
        await home.service.drain()
        await home.service.stop()
        assert not await home.has(doomed)
        assert not home.service._leadership.held
        assert await home.backends.catalog.leases.take(home.service.name, "the next", 1.0)


async def test_nothing_is_written_beside_the_catalog_once_another_may_lead(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a work item: the lease runs out while a slow port is waited for."""
    async with house(small) as home:
        job_id = await home.finish(request())
        monkeypatch.setattr(type(home.service._leadership), "held", False)
        with pytest.raises(UnavailableError, match="does not lead cache_maintainer any more"):
            await home.service.cache.purge(lambda _: True)
        assert await home.found(1) == [job_id]
        home.service.cache.doomed.add([f"states/{job_id}/2/5.safetensors"])
        with pytest.raises(UnavailableError):
            await home.service.cache.doomed.delete(unread=True)
