"""A catalog over a blob store of another time: requests go on, and nothing is deleted that a newer catalog names."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from services.cli.backup import back_up, restored
from shared.client import Picture
from shared.domain.errors import NotFoundError
from shared.domain.types import PlanSource
from shared.runtime.settings import Settings
from tests.flows.conftest import tiny
from tests.flows.house import House, house

__all__ = ["tiny"]
EARLY, LATE = "a red cube on a table", "a blue ball in the grass"


@pytest.fixture
def brief(settings: Settings, tiny: Path) -> Settings:
    """The collector looks at blobs at once."""
    changes: dict[str, Any] = {"large": "noop:", "encoder": str(tiny / "clip"), "torch_threads": 1}
    changes |= dict.fromkeys(("lookup_timeout_s", "call_timeout_s", "extract_timeout_s"), 10.0)
    return settings.model_copy(update=changes | {"blob_grace_s": 0.1, "collect_s": 3600.0})


@asynccontextmanager
async def served(settings: Settings) -> AsyncIterator[tuple[House, Any]]:
    """Yield the house and its cache maintainer."""
    async with house(settings) as it:
        yield it, next(one for one in it.process.services if one.name == "cache_maintainer")


async def two_times(settings: Settings, backup: Path) -> tuple[Picture, Picture]:
    """An image before the backup, which is made while everything serves, and one after it."""
    async with served(settings) as (it, _):
        early = await it.generate(EARLY, seed=1)
        await back_up(settings, backup)
        return early, await it.generate(LATE, seed=2)


def put_catalog(settings: Settings, from_folder: Path) -> None:
    for end in ("", "-wal", "-shm"):
        (settings.data_dir / f"catalog.sqlite3{end}").unlink(missing_ok=True)
    shutil.copy(from_folder / "catalog.sqlite3", settings.data_dir)


async def test_an_older_catalog_over_a_newer_store_deletes_nothing_newer(brief: Settings, tmp_path: Path) -> None:
    early, late = await two_times(brief, tmp_path / "older")
    await back_up(brief, tmp_path / "newer")  # with nothing serving
    put_catalog(brief, tmp_path / "older")
    async with served(brief) as (it, maintainer):
        assert (await it.client.get_picture(early.job.id)).png == early.png
        with pytest.raises(NotFoundError):
            await it.client.get_picture(late.job.id)
        assert (await it.generate(EARLY, seed=1)).plan.source is PlanSource.EXACT
        assert (await it.generate(LATE, seed=2)).plan.source is not PlanSource.EXACT
        await asyncio.sleep(0.2)
        found = await maintainer._collector.collect(confirmed=True)
        left = [blob async for blob in it.backends.blobs.list() if late.job.id in blob.key]
        assert found.unnamed == len(left) > 1
        assert (found.due, found.deleted) == (0, 0)
    put_catalog(brief, tmp_path / "newer")
    async with served(brief) as (it, _):
        assert (await it.client.get_picture(late.job.id)).png == late.png
        assert (await it.generate(LATE, seed=2)).plan.source is PlanSource.EXACT


async def test_a_newer_catalog_over_an_older_store_has_holes_that_requests_survive(
    brief: Settings, tmp_path: Path
) -> None:
    early, late = await two_times(brief, tmp_path / "older")
    shutil.rmtree(brief.data_dir / "blobs")
    shutil.copytree(tmp_path / "older" / "blobs", brief.data_dir / "blobs")
    async with served(brief) as (it, _):
        assert (await it.client.get_picture(early.job.id)).png == early.png
        with pytest.raises(NotFoundError, match="send its request again"):
            await it.client.get_picture(late.job.id)
        similar = await it.generate(LATE, seed=3)
        assert similar.steps_run == 10
        assert any("blobs" in note for note in similar.plan.degraded)
        again = await it.client.generate(LATE, seed=2, steps=10)  # an exact repeat, whose image is gone
        assert again.plan.source is not PlanSource.EXACT
        assert (await it.client.get_picture(again.job.id)).png == again.png

        async def whole() -> bool:
            return late.job.id not in await it.backends.catalog.entries.by_ids([late.job.id])

        async with asyncio.timeout(20.0):
            while not await whole():
                await asyncio.sleep(0.02)


async def test_a_restored_backup_serves_with_its_hits(brief: Settings, tmp_path: Path) -> None:
    early, late = await two_times(brief, tmp_path / "backup")
    new = Settings(**(brief.model_dump(exclude={"catalog_url", "blobs_url"}) | {"data_dir": tmp_path / "new"}))
    await restored(new, tmp_path / "backup")
    async with served(new) as (it, _):
        assert (await it.client.get_picture(early.job.id)).png == early.png
        with pytest.raises(NotFoundError):
            await it.client.get_job(late.job.id)
        hit = await it.generate(EARLY, seed=3)
        assert (hit.plan.source, hit.plan.entry_id) == (PlanSource.LATENT, early.job.id)
        assert not hit.plan.degraded
