"""Each store's disk fills up under Afterimage: what is served, what is refused, and that nothing accepted is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from scripts.stack import minio, postgresql, rabbitmq, weaviate
from scripts.stack.servers import Server
from shared.client import AsyncClient, Picture
from shared.domain.errors import AfterimageError, StorageFullError, UnavailableError
from shared.domain.types import Job, JobState, PlanSource
from shared.runtime.settings import Settings
from tests import tiny
from tests.contracts.servers import folder, url_of
from tests.disks import Disk, small_disk
from tests.flows.house import SLOW, House, house

LIMIT_S = 100.0
RESERVE = 2**20
"""Setting `min_free_bytes`, in bytes."""


@pytest.fixture
def small(settings: Settings, tmp_path: Path) -> Settings:
    """One process on the disk of its test."""
    encoder = str(tiny.build_clip(tmp_path / "models") / "clip")
    changes: dict[str, Any] = {"large": SLOW, "encoder": encoder, "torch_threads": 1, "checkpoint_every_steps": 10}
    changes |= dict.fromkeys(("lookup_timeout_s", "call_timeout_s", "extract_timeout_s"), 10.0)
    changes |= {"sweep_s": 0.5, "min_free_bytes": RESERVE, "data_dir": tmp_path / "disk" / "data"}
    return Settings(**settings.model_dump(exclude={"catalog_url", "blobs_url"}) | changes)


@asynccontextmanager
async def on_a_small_disk(program: Any, size: str) -> AsyncIterator[tuple[Server, Disk]]:
    """A server of our own whose data are alone on a disk of this size."""
    name = program.__name__.rpartition(".")[2]
    if program.find() is None:
        url_of(name)  # skips, or fails where it is required
    with small_disk(folder() / f"small-{name}", size) as disk:
        server = await asyncio.to_thread(program.start, disk.folder / name)
        try:
            yield server, disk
        finally:
            await asyncio.to_thread(server.stop)


async def late(it: House, prompt: str, **fields: Any) -> asyncio.Task[Picture]:
    """A job that a worker has begun, and whose client waits and insists, as clients do."""

    async def insists() -> Picture:
        async with AsyncClient(it.process.address, retry_s=LIMIT_S) as client:
            return await client.generate(prompt, steps=100, timeout_s=LIMIT_S, **fields)

    found = asyncio.create_task(insists())
    async with asyncio.timeout(20.0):
        while not (await it.backends.catalog.jobs.list(state=JobState.RUNNING))[0]:
            await asyncio.sleep(0.02)
    return found


async def all_there(it: House, *pictures: Picture) -> None:
    """Each image is served, and its prompt is answered with it again."""
    for one in pictures:
        assert (await it.client.get_picture(one.job.id)).png == one.png
    jobs: list[Job] = (await it.backends.catalog.jobs.list(limit=1000))[0]
    assert {job.state for job in jobs} == {JobState.SUCCEEDED}


async def test_the_data_directory(small: Settings, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "48m") as disk:
        async with house(small) as it:
            kept = await it.generate("a red cube", seed=1)
            # the reserve is touched: new work is refused, what needs no room is served
            disk.fill(leave=RESERVE * 3 // 4)
            with pytest.raises(StorageFullError, match="the data directory's disk has 0 MiB left") as full:
                await it.client.generate("a green cone", seed=3)
            assert full.value.retry_after_s
            repeat = await it.generate("a red cube", seed=1)
            assert (repeat.plan.source, repeat.png) == (PlanSource.EXACT, kept.png)
            disk.make_room()
            # not a byte is left in the middle of a job
            running = await late(it, "a blue ball", seed=2)
            disk.fill()
            for prompt, seed in (("a green cone", 3), ("a red cube", 1)):
                with pytest.raises(StorageFullError, match="the data directory's disk has 0 MiB left"):
                    await it.client.generate(prompt, seed=seed, steps=10, variation="same")
            assert (await it.client.get_picture(kept.job.id)).png == kept.png
            await asyncio.sleep(4.0)
            assert not running.done()
            disk.make_room()
            drawn = await running
            new = await it.generate("a green cone", seed=3)
            await all_there(it, kept, drawn, new)
        async with house(small) as it:
            await all_there(it, kept, drawn, new)


async def test_postgresql(small: Settings, tmp_path: Path) -> None:
    async with on_a_small_disk(postgresql, "160m") as (server, disk):
        small = small.model_copy(update={"catalog_url": server.url, "data_dir": tmp_path / "data"})
        async with house(small) as it:
            kept = await it.generate("a red cube", seed=1)
            running = await late(it, "a blue ball", seed=2)
            # tables may not grow: requests are refused as soon as their row needs a page
            disk.fill()
            drawn: list[Picture] = []
            with pytest.raises(StorageFullError, match="the catalog's disk is full"):
                await _ask_until_refused(it, drawn)
            assert (await it.client.get_picture(kept.job.id)).png == kept.png
            await asyncio.sleep(3.0)
            disk.make_room()
            drawn.append(await running)
            # the log may not grow: the server ends, and an operator starts it once there is room
            running = await late(it, "a yellow ball", seed=3)
            disk.fill()
            await _write_log_until_it_ends(server)
            with pytest.raises(UnavailableError, match="catalog"):
                await it.client.generate("a green cone", seed=3)
            disk.make_room()
            await asyncio.to_thread(server.start)
            drawn += [await running, await it.generate("a green cone", seed=3)]
            await all_there(it, kept, *drawn)


async def _ask_until_refused(it: House, drawn: list[Picture]) -> None:
    while len(drawn) < 100:
        drawn.append(await it.client.generate("many green cones " * 100, seed=len(drawn), steps=5))


async def _write_log_until_it_ends(server: Server) -> None:
    """Begin one file of PostgreSQL's log after the other, until there is no room for the next."""
    async with asyncio.timeout(30.0):
        while server.alive:
            with contextlib.suppress(OSError, asyncpg.PostgresError):
                connection = await asyncpg.connect(server.url.replace("+asyncpg", ""))
                try:
                    await connection.execute("SELECT pg_logical_emit_message(true, '', 'x')")
                    await connection.execute("SELECT pg_switch_wal()")
                finally:
                    await connection.close()
            await asyncio.sleep(0.05)


async def test_minio(small: Settings, tmp_path: Path) -> None:
    """Images cannot be stored: jobs are tried again until they can."""
    async with on_a_small_disk(minio, "64m") as (server, disk):
        small = small.model_copy(update={"blobs_url": server.url, "data_dir": tmp_path / "data"})
        async with house(small) as it:
            kept = await it.generate("a red cube", seed=1)
            waiting = [await late(it, "a blue ball", seed=2)]
            disk.fill()
            waiting.append(await late(it, "a green cone", seed=3))
            repeat = await it.client.generate("a red cube", seed=1, steps=10, variation="same")
            assert (repeat.plan.source, repeat.png) == (PlanSource.EXACT, kept.png)
            await asyncio.sleep(5.0)
            assert not any(one.done() for one in waiting)
            disk.make_room()
            drawn = await asyncio.gather(*waiting)
            await all_there(it, kept, *drawn, await it.generate("a white cone", seed=4))


async def test_rabbitmq(small: Settings, tmp_path: Path) -> None:
    """With less than 50 MB free, RabbitMQ takes no messages."""
    async with on_a_small_disk(rabbitmq, "256m") as (server, disk):
        small = small.model_copy(update={"bus_url": server.url, "data_dir": tmp_path / "data"})
        async with house(small) as it:
            kept = await it.generate("a red cube", seed=1)
            drawn: list[Picture] = []
            for leave in (20 * 2**20, 0):
                running = await late(it, "a blue ball", seed=leave, cache="off")
                disk.fill(leave)
                async with asyncio.timeout(30.0):
                    while not it.backends.bus.full:
                        await asyncio.sleep(0.1)
                with pytest.raises(StorageFullError, match="message broker's disk or memory is full") as full:
                    await it.client.generate("a green cone", seed=3)
                assert full.value.retry_after_s
                repeat = await it.client.generate("a red cube", seed=1, steps=10, variation="same")
                assert (repeat.plan.source, repeat.png) == (PlanSource.EXACT, kept.png)
                drawn.append(await running)  # its task was there before
                disk.make_room()
                async with asyncio.timeout(30.0):
                    while it.backends.bus.full:
                        await asyncio.sleep(0.1)
                drawn.append(await it.generate(f"a green cone {leave}", seed=3))
            assert server.alive
            await all_there(it, kept, *drawn)


async def test_weaviate(small: Settings, tmp_path: Path) -> None:
    """From 90 % on, Weaviate reads only, and it takes a restart to make it write again."""
    async with on_a_small_disk(weaviate, "128m") as (server, disk):
        small = small.model_copy(update={"index_url": server.url, "data_dir": tmp_path / "data", "predictor": "always"})
        async with house(small) as it:
            kept = await it.generate("a red cube", seed=1)
            disk.fill()
            await asyncio.sleep(3.0)
            new = await it.client.generate("a green cone", seed=3, steps=10)
            near = await it.client.generate("a red cube", seed=5, steps=10, variation="same")
            assert near.plan.source is PlanSource.LATENT
            repeat = await it.client.generate("a red cube", seed=1, steps=10, variation="same")
            assert (repeat.plan.source, repeat.png) == (PlanSource.EXACT, kept.png)
            await asyncio.sleep(3.0)
            added = [new.job.id, near.job.id]
            assert await it.backends.index.missing(added)
            disk.make_room()
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            async with asyncio.timeout(LIMIT_S):
                while await _missing(it, added):
                    await asyncio.sleep(0.5)
            assert (await it.generate("a green cone", seed=9)).plan.source is PlanSource.LATENT
            await all_there(it, kept, new, near)


async def _missing(it: House, added: list[str]) -> set[str]:
    """Entries that the index does not find yet."""
    with contextlib.suppress(AfterimageError):
        found: set[str] = await it.backends.index.missing(added)
        return found
    return set(added)
