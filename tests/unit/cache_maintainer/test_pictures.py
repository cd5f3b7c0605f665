"""Finished pictures as states: embedded behind everybody's back, searched by text, and evicted without costing anyone
their result."""

from __future__ import annotations

import asyncio

import pytest

from shared.domain.errors import BlobMissingError, NotFoundError
from shared.domain.messages import StateUsed
from shared.runtime.settings import Settings
from tests.unit.cache_maintainer.house import home
from tests.unit.cached import measured


async def test_a_picture_is_found_by_what_it_shows_also_without_latents(settings: Settings) -> None:
    async with home(settings) as here:
        job = await here.finish("a red cube", 1, steps=())
        await here.embedded()
        assert await here.found(1) == [job.id]
        entry = await here.backends.catalog.entries.get(job.id)
        assert entry.picture is not None
        assert job.result is not None
        assert (entry.picture.key, entry.latents) == (job.result.picture_key, ())
        assert entry.encoder_hash  # the prompt was never embedded: the picture says by whom


async def test_nothing_is_embedded_until_a_served_model_may_start_from_it_and_then_all_is(settings: Settings) -> None:
    async with home(settings, may_start=False, blob_grace_s=0.1) as here:
        jobs = [await here.finish(f"{seed}", seed) for seed in (1, 2)]
        await asyncio.sleep(0.3)
        assert len(await here.backends.catalog.entries.unembedded()) == 2
        await measured(here.maintainer._settings)
        await here.embedded()
        assert [await here.found(seed) for seed in (1, 2)] == [[job.id] for job in jobs]


async def test_an_evicted_picture_leaves_the_index_and_stays_the_jobs(settings: Settings) -> None:
    async with home(settings, picture_max_count=1, blob_grace_s=0.05) as here:
        first = await here.finish("a", 1)
        await here.embedded()
        second = await here.finish("b", 2)
        await here.embedded()
        assert await here.found(1) == []
        assert await here.found(2) == [second.id]
        assert (await here.backends.catalog.entries.get(first.id)).picture is None
        await asyncio.sleep(0.1)
        await here.maintainer.cache.doomed.delete()
        assert first.result is not None
        assert await here.backends.blobs.get(first.result.picture_key, first.result.picture_sha256)


async def test_an_expired_result_leaves_the_cached_picture_and_an_evicted_one_is_gone_then(settings: Settings) -> None:
    async with home(settings, results_keep_s=0.05, blob_grace_s=0.05, picture_max_count=1) as here:
        first = await here.finish("a", 1, steps=())
        await here.embedded()
        await asyncio.sleep(0.2)
        await here.maintainer.collect()
        with pytest.raises(NotFoundError):
            await here.backends.catalog.jobs.get(first.id)
        assert await here.found(1) == [first.id]
        assert first.result is not None
        assert await here.backends.blobs.get(first.result.picture_key)

        await here.finish("b", 2, steps=())  # pushes it out of the window
        await here.maintainer.collect()
        await asyncio.sleep(0.1)
        await here.maintainer.cache.doomed.delete()
        with pytest.raises(BlobMissingError):
            await here.backends.blobs.get(first.result.picture_key)


async def test_only_the_large_models_pictures_where_that_is_wanted(settings: Settings) -> None:
    async with home(settings, image_tier="large", small="noop:?name=small") as here:
        large, small = await here.finish("a", 1), await here.finish("b", 2, model="small")
        entries = await here.backends.catalog.entries.by_ids([large.id, small.id])
        assert entries[large.id].picture is not None
        assert entries[small.id].picture is None
    async with home(settings, image_tier="off") as here:
        off = await here.finish("c", 3)
        assert (await here.backends.catalog.entries.get(off.id)).picture is None


async def test_what_is_no_picture_costs_only_itself(settings: Settings) -> None:
    async with home(settings) as here:
        broken, good = await here.finish("a", 1, picture=b"no picture at all"), await here.finish("b", 2)
        await here.embedded()
        assert await here.found(2) == [good.id]
        entry = await here.backends.catalog.entries.get(broken.id)
        assert entry.picture is None


async def test_uses_of_a_picture_are_counted(settings: Settings) -> None:
    async with home(settings) as here:
        job = await here.finish("a", 1)
        await here.backends.bus.publish(StateUsed(job.id, 0))

        async def counted() -> bool:
            await here.maintainer.flush()
            picture = (await here.backends.catalog.entries.get(job.id)).picture
            return picture is not None and picture.uses == 1

        await here.until(counted)
