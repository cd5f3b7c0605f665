"""PostgreSQL comes back without its last commits, under services that go on running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import sqlalchemy as sa

from shared.catalog.dump import dump, load
from shared.client import AsyncClient
from shared.domain.errors import AfterimageError, NotFoundError
from shared.domain.types import JobState
from shared.runtime.settings import Settings
from tests.contracts.databases import new_database
from tests.flows.conftest import tiny
from tests.flows.house import SLOW, House, house

__all__ = ["tiny"]


@pytest.fixture
async def over_postgresql(settings: Settings, tiny: Path) -> AsyncIterator[Settings]:
    async with new_database() as url:
        changes: dict[str, Any] = {"catalog_url": url, "large": SLOW, "encoder": str(tiny / "clip"), "torch_threads": 1}
        changes |= dict.fromkeys(("lookup_timeout_s", "call_timeout_s", "extract_timeout_s"), 10.0)
        yield settings.model_copy(update=changes | {"lease_s": 2.0, "sweep_s": 0.2, "blob_grace_s": 0.1})


async def lose(url: str, kept: Path) -> None:
    """Replace the database by an earlier state of it, as a server does that lost its last log."""
    parsed = sa.make_url(url).set(drivername="postgresql")
    server = await asyncpg.connect(parsed.set(database="postgres").render_as_string(hide_password=False))
    try:
        await server.execute(f'DROP DATABASE "{parsed.database}" WITH (FORCE)')
        await server.execute(f'CREATE DATABASE "{parsed.database}"')
    finally:
        await server.close()
    await load(url, kept)


async def patiently(client: AsyncClient, job_id: str) -> bytes:
    """Return the job's image once there is one."""
    async with asyncio.timeout(30.0):
        while True:
            try:
                return (await client.get_picture(job_id)).png
            except AfterimageError:
                await asyncio.sleep(0.05)


async def late(it: House) -> Any:
    """Wait for the image of a job that the lost commits alone know."""
    return await it.client.generate("a lost job", steps=200, cache="off", timeout_s=60.0)


async def test_what_is_lost_is_not_found_and_all_else_goes_on(over_postgresql: Settings, tmp_path: Path) -> None:
    url = over_postgresql.catalog_url
    async with house(over_postgresql) as it:
        early = await it.generate("a red cube on a table", seed=1)
        working = asyncio.create_task(it.client.generate("a long job", seed=2, steps=50, cache="off"))
        async with asyncio.timeout(20.0):
            while not (jobs := (await it.backends.catalog.jobs.list(state=JobState.RUNNING))[0]):
                await asyncio.sleep(0.01)
        await dump(url, tmp_path / "kept.dump")
        ended = await working
        lost = await it.generate("a blue ball", seed=3)
        running = asyncio.create_task(late(it))
        await asyncio.sleep(0.5)
        await lose(url, tmp_path / "kept.dump")
        with pytest.raises(AfterimageError):
            await running
        with pytest.raises(NotFoundError):
            await it.client.get_job(lost.job.id)
        assert (await it.client.get_picture(early.job.id)).png == early.png
        # its end is lost: the lease runs out, and it runs again to the same image
        assert (jobs[0].id, await patiently(it.client, jobs[0].id)) == (ended.job.id, ended.png)
        again = await it.generate("a blue ball", seed=3)
        assert (await it.client.get_picture(again.job.id)).png == again.png
        maintainer: Any = next(one for one in it.process.services if one.name == "cache_maintainer")
        await asyncio.sleep(0.2)
        found = await maintainer._collector.collect(confirmed=True)
        left = [blob async for blob in it.backends.blobs.list() if lost.job.id in blob.key]
        assert len(left) > 1
        assert found.deleted == 0
        maintainer._collector._quarantine_s = 0.0  # as three days later: what has a row stays
        assert (await maintainer._collector.collect(confirmed=True)).deleted >= len(left)
        assert not [blob async for blob in it.backends.blobs.list() if lost.job.id in blob.key]
        for kept in (early, again):
            assert (await it.client.get_picture(kept.job.id)).png == kept.png
    async with house(over_postgresql) as it:
        assert (await it.generate("a red cube on a table", seed=1)).png == early.png
