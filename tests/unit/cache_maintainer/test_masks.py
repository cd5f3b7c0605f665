"""Masks join their entry in either order, once, are counted, and leave with the entry's last latent."""

from __future__ import annotations

import pytest

from protos import cache_maintainer_pb2 as pb
from services.cache_maintainer import upkeep
from shared.domain.errors import UnavailableError
from shared.domain.masks import MASK_STEP, Mask
from shared.domain.messages import EntriesEvicted, StateLost, VideoSegmented
from shared.runtime.settings import Settings
from tests.unit.cache_maintainer.house import House, failing, house
from tests.unit.cached import finished_job, request, unit


async def segmented(home: House, job_id: str, name: str = "a", size: int = 50) -> VideoSegmented:
    """The event of a segmenter that stored the masks of this job."""
    key = f"masks/{job_id}-{name}.mask"
    return VideoSegmented(job_id, key, await home.backends.blobs.put(key, b"m" * size), size)


async def mask_of(home: House, job_id: str) -> Mask | None:
    return (await home.backends.catalog.entries.get(job_id)).mask


@pytest.mark.parametrize("first", ["mask", "entry"])
async def test_masks_are_noted_once_in_either_order(small: Settings, first: str) -> None:
    async with house(small) as home:
        if first == "mask":
            job = await finished_job(home.backends, request(), unit(1))
            event = await segmented(home, job.id)
            await home.service.handle(event)
            await home.service.catch_up()
        else:
            event = await segmented(home, await home.finish(request()))
        for _ in range(2):  # at least once
            await home.service.handle(event)
        assert await mask_of(home, event.job_id) == Mask(event.mask_key, event.sha256, 50)
        assert home.service.cache.held.masks.total == 50
        await home.settle()
        assert EntriesEvicted((), (event.job_id,)) in home.facts  # copies without masks are dropped
        other = await segmented(home, event.job_id, "b")
        await home.service.handle(other)
        stats = await home.stub.Stats(pb.StatsRequest(), timeout=5)
        assert stats.bytes == 550
    blobs = small.data_dir / "blobs"
    assert [path.name for path in blobs.rglob("*.mask")] == [event.mask_key.removeprefix("masks/")]
    async with house(small) as home:  # a new leader counts them
        assert home.service.cache.held.masks.total == 50


async def test_a_leader_killed_between_row_and_event_leaves_the_masks_noted(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(small) as home:
        event = await segmented(home, await home.finish(request()))
        entries = home.service.cache._backends.catalog.entries
        monkeypatch.setattr(entries, "by_ids", failing(entries.by_ids, UnavailableError("away"), on=1))
        with pytest.raises(UnavailableError):
            await home.service.handle(event)
        await home.service._tidy()  # the bus may have given up
        assert await mask_of(home, event.job_id) is not None
        assert home.service.cache.held.masks.total == 50


async def test_masks_that_cannot_be_noted_stop_no_others(small: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    async with house(small) as home:
        bad, good, late = [
            await segmented(home, await home.finish(request(str(seed)), seed), size=5) for seed in (1, 2, 3)
        ]
        entries = home.service.cache._backends.catalog.entries
        note, tries = entries.note_mask, list[str]()

        async def noted(job_id: str, mask: Mask) -> bool:
            tries.append(job_id)
            if job_id == bad.job_id or tries.count(job_id) < 2:
                raise UnavailableError("away")
            return await note(job_id, mask)

        monkeypatch.setattr(entries, "note_mask", noted)
        for event in (bad, good, late):
            with pytest.raises(UnavailableError):
                await home.service.handle(event)
        await home.service.handle(late)  # again, from the bus
        for _ in range(2):
            await home.service._tidy()
        assert list(home.service._masks) == [bad.job_id]
        assert await mask_of(home, good.job_id) is not None
        assert tries.count(bad.job_id) == 2  # the next try waits
        monkeypatch.setattr(upkeep, "MOST_UNNOTED", 1)
        with pytest.raises(UnavailableError):
            await home.service.handle(VideoSegmented("another", "masks/another.mask", "", 1))
        assert list(home.service._masks) == ["another"]


async def test_masks_count_in_the_budget_and_leave_with_the_last_latent(small: Settings) -> None:
    """Room for 1,000 bytes: two entries of 500 leave none for masks."""
    async with house(small) as home:
        one, two = [await home.finish(request(str(seed)), seed) for seed in (1, 2)]
        event = await segmented(home, one)
        await home.service.handle(event)
        held = home.service.cache.held
        assert held.latents.bytes + held.masks.total <= 1000
        assert len(await home.steps(one)) + len(await home.steps(two)) == 9
        await home.stub.Purge(pb.PurgeRequest(entry_id=one), timeout=5)
        assert held.masks.total == 0
        assert await home.has(event.mask_key)  # someone may be reading
        event = await segmented(home, two)
        await home.service.handle(event)
        for step in await home.steps(two):
            found = await home.backends.catalog.entries.get(two)
            key = next(state.key for state in found.states if state.step == step)
            assert found.mask is not None
            await home.service.handle(StateLost(two, step, key))
        assert await mask_of(home, two) is None
        assert held.masks.total == 0
    assert not list((small.data_dir / "blobs").rglob("*.mask"))


async def test_an_eviction_whose_masks_cannot_be_dropped_is_indexed_and_published(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(small) as home:
        event = await segmented(home, await home.finish(request()))
        await home.service.handle(event)
        entries, calls = home.backends.catalog.entries, list[object]()
        dropping = failing(entries.drop_masks, UnavailableError("away"), on=1)

        async def counted(*args: object) -> object:
            calls.append(args)
            return await dropping(*args)

        monkeypatch.setattr(entries, "drop_masks", counted)
        for state in (await entries.get(event.job_id)).latents:
            await home.service.handle(StateLost(event.job_id, state.step, state.key))
        await home.settle()
        assert EntriesEvicted((event.job_id,), ()) in home.facts
        assert await home.found(1) == []
        assert await mask_of(home, event.job_id) is not None
        await home.service._tidy()
        assert await mask_of(home, event.job_id) is None
        assert home.service.cache.held.masks.total == 0
        await home.service._tidy()
        other = await home.finish(request("without masks"), 2)
        for state in (await entries.get(other)).latents:
            await home.service.handle(StateLost(other, state.step, state.key))
        assert len(calls) == 2  # no write for an entry without masks


async def test_lost_masks_leave_and_their_entry_stays(small: Settings) -> None:
    async with house(small) as home:
        event = await segmented(home, await home.finish(request()))
        await home.service.handle(event)
        await home.service.handle(StateLost(event.job_id, MASK_STEP, "masks/other"))
        assert await mask_of(home, event.job_id) is not None
        for _ in range(2):
            await home.service.handle(StateLost(event.job_id, MASK_STEP, event.mask_key))
        assert await mask_of(home, event.job_id) is None
        assert len(await home.steps(event.job_id)) == 5
        again = await segmented(home, event.job_id, "again")
        await home.service.handle(again)
        found = await mask_of(home, event.job_id)
        assert found is not None
        assert found.key == again.mask_key


async def test_masks_of_a_job_that_is_gone_are_deleted(small: Settings) -> None:
    async with house(small) as home:
        await home.service.handle(await segmented(home, "gone"))
    assert not list((small.data_dir / "blobs").rglob("*.mask"))


async def test_masks_that_came_before_their_entry_keep_the_cache_within_its_budget(small: Settings) -> None:
    async with house(small.model_copy(update={"cache_max_bytes": 1000})) as home:
        first = await home.finish(request("a"), 1)
        job = await finished_job(home.backends, request("b"), unit(2))
        await home.service.handle(await segmented(home, job.id, size=100))
        await home.service.catch_up()
        held = home.service.cache.held
        assert held.masks.total == 100
        assert held.latents.bytes + held.masks.total <= 1000
        assert (await home.backends.catalog.entries.by_ids([first, job.id])).keys() == {job.id, first}
