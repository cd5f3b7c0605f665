"""Nothing is deleted from a store that belongs to another catalog."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from shared.blobs import open_blobs
from shared.domain.errors import StoreMismatchError
from shared.runtime.settings import Settings
from shared.service.pairing import SEAL_KEY, read_seal
from tests.unit.cache_maintainer.house import held, house, old_orphans, steal
from tests.unit.cached import request

pytestmark = pytest.mark.usefixtures("passes_are_made_by_the_test")

ORPHAN = "states/nobody/1/5.safetensors"


async def test_a_new_catalog_over_an_old_store_is_refused_and_nothing_is_deleted(brief: Settings) -> None:
    """An empty catalog had deleted 9 of 9 blobs within 25 s."""
    async with house(brief) as home:
        for number in range(3):
            await home.finish(request(str(number)), number, steps=(5, 10))
        kept = [blob.key async for blob in home.backends.blobs.list()]
    assert len(kept) == 3 * 3 + 1
    for path in brief.data_dir.glob("catalog.sqlite3*"):
        path.rename(path.with_name(f"lost-{path.name}"))
    with pytest.raises(StoreMismatchError) as refused:
        async with house(brief):
            pass
    assert str(brief.data_dir / "blobs") in str(refused.value)
    assert str(brief.data_dir / "catalog.sqlite3") in str(refused.value)
    blobs = await open_blobs(brief.blobs_url)
    assert [blob.key async for blob in blobs.list()] == kept
    await blobs.close()
    for path in brief.data_dir.glob("lost-*"):
        path.rename(path.with_name(path.name.removeprefix("lost-")))
    async with house(brief) as home:  # its own catalog goes on where it was
        assert len((await home.backends.catalog.entries.page(10))[0]) == 3


async def test_a_store_that_is_swapped_while_running_is_left_alone(
    brief: Settings, logs: list[MutableMapping[str, Any]]
) -> None:
    async with house(brief.model_copy(update={"quarantine_s": 0.0})) as home:
        entry_id = await home.finish(request())
        (orphan,) = await old_orphans(home, 1)
        own = await home.backends.blobs.get(SEAL_KEY)
        await steal(home)
        await home.service.collect()
        await home.service.cache.purge(lambda entry: entry.id == entry_id)
        await asyncio.sleep(0.2)
        await home.service._tidy()
        assert await home.has(orphan)
        assert await home.has(f"states/{entry_id}/1/5.safetensors")  # evicted or purged: not from another's store
        assert held("mismatch") == 1
        assert "another-catalog" in next(one["error"] for one in logs if one["event"] == "nothing is collected")
        await home.backends.blobs.put(SEAL_KEY, own)
        await home.service.collect()
        await home.service._tidy()
        assert not await home.has(orphan)
        assert not await home.has(f"states/{entry_id}/1/5.safetensors")
        assert held("mismatch") == 0


async def test_a_store_of_the_version_before_is_used_and_not_collected_unless_the_catalog_knows_it(
    brief: Settings, logs: list[MutableMapping[str, Any]]
) -> None:
    at_once = brief.model_copy(update={"quarantine_s": 0.0})
    blobs = await open_blobs(at_once.blobs_url)
    await blobs.put(ORPHAN, b"x")
    async with house(at_once) as home:
        said = next(one["error"] for one in logs if one["event"] == "store not adopted")
        assert "knows 0% of 1 sampled blobs (90% are needed)" in said
        await home.finish(request(), steps=(5,))
        await asyncio.sleep(0.2)
        await home.service.collect()
        assert await home.has(ORPHAN)
        assert held("unadopted") == 1
        for number in range(4):  # 3 blobs each: with them the catalog knows more than nine tenths
            await home.finish(request(str(number)), number, steps=(5, 10))
        await asyncio.sleep(0.2)
        await home.service.collect()
        assert await read_seal(blobs) is not None
        assert not await home.has(ORPHAN)
        assert held("unadopted") == 0
    await blobs.close()


async def test_a_damaged_id_of_a_store_is_written_again_where_the_catalog_knows_its_blobs(brief: Settings) -> None:
    async with house(brief) as home:
        await home.finish(request())
        before = await read_seal(home.backends.blobs)
        await home.backends.blobs.put(SEAL_KEY, b"not json")
        await home.service.collect()
        assert await read_seal(home.backends.blobs) == before
