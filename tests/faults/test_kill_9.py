"""Killed again and again while a client keeps sending: pictures stay, and cache, index and blobs agree."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.stack.servers import free_port
from services.cache_maintainer.service import CacheMaintainerService
from shared.client import AsyncClient, Picture
from shared.domain.errors import UnavailableError
from shared.domain.types import IndexFilter, JobState
from shared.runtime.addresses import unreachable
from shared.runtime.settings import Settings
from tests import tiny
from tests.flows.house import House, house
from tests.unit.cached import measured

KILLS = 3
CLIENTS = 4
START_S = 60.0


@pytest.fixture
def killed(tmp_path: Path) -> Settings:
    """Room for about four entries, so that every insertion evicts; nothing waits long for anything."""
    return Settings(
        data_dir=tmp_path / "data",
        listen=f"127.0.0.1:{free_port()}",
        metrics_listen="",
        large="noop:?step_ms=3",
        encoder=str(tiny.build_clip(tmp_path / "models") / "clip"),
        torch_threads=1,
        cache_max_bytes=16_000,
        eviction_policy="lcbfu",  # lets every state in
        cache_batch_s=0.01,
        picture_batch_s=0.05,
        blob_grace_s=0.2,
        quarantine_s=0.0,
        sweep_s=0.5,
        log_level="error",
    )


Progress = Callable[[], int]
"""Pictures that clients have."""


class Lives:
    """One life at a time."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self._process, self._address = process, address

    async def live(self) -> int:
        """Starts the service; its process id."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"live\n")
        return int(await self._process.stdout.readline())

    async def ended(self) -> None:
        """Waits until the killed service is gone: until then it holds its data directory."""
        assert self._process.stdout is not None
        async with asyncio.timeout(START_S):
            assert await self._process.stdout.readline() == b"ended\n"

    async def kill_one(self, drawn: Progress, after_s: float) -> None:
        """Starts the service, and kills it so long after it drew something."""
        async with asyncio.timeout(START_S):
            pid = await self.live()
            while await unreachable(self._address) is not None:
                await asyncio.sleep(0.02)
            before = drawn()
            while drawn() < before + 2:
                await asyncio.sleep(0.005)
        await asyncio.sleep(after_s)
        os.kill(pid, signal.SIGKILL)
        await self.ended()


@contextlib.asynccontextmanager
async def lives(settings: Settings) -> AsyncIterator[Lives]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.faults.lives", settings.model_dump_json(),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield Lives(process, settings.listen)
    finally:
        process.kill()
        await process.wait()


async def keep_sending(address: str, name: int, enough: asyncio.Event, got: dict[str, Picture]) -> None:
    """One user refining prompts, each under a key of its own, until it is enough; `got`: key → picture."""
    number = 0
    while not enough.is_set():
        key, prompt = f"{name}-{number}", f"a {('red', 'blue', 'green')[number % 3]} cube number {name}"
        got[key] = await _drawn(address, prompt, idempotency_key=key, steps=10, seed=number)
        number += 1


async def _drawn(address: str, prompt: str, **fields: Any) -> Picture:
    """The picture, from whichever life answers: impatient, and with a new connection each time."""
    async with asyncio.timeout(START_S):
        while True:
            try:
                async with AsyncClient(address, retry_s=0.0) as client:
                    return await client.generate(prompt, **fields)
            except UnavailableError:
                await asyncio.sleep(0.1)


async def test_kill_9_at_any_moment_loses_nothing(killed: Settings) -> None:
    moments = random.Random(0)
    enough = asyncio.Event()
    got: dict[str, Picture] = {}
    await measured(killed)  # else no picture would be in the index
    async with lives(killed) as each:
        sending = [asyncio.create_task(keep_sending(killed.listen, name, enough, got)) for name in range(CLIENTS)]
        for _ in range(KILLS):
            await each.kill_one(lambda: len(got), moments.uniform(0.0, 0.3))
    enough.set()  # what is under way was accepted by a process that is dead
    async with house(killed) as home:
        await asyncio.gather(*sending)
        await _nothing_is_lost(home, got)
        await _cache_index_and_blobs_agree(home)
    assert len(got) > KILLS * 2


async def _nothing_is_lost(home: House, got: dict[str, Picture]) -> None:
    """Every picture a client was given is there, no key drew twice, and no job is stuck."""
    for picture in got.values():
        assert (await home.client.get_picture(picture.job.id)).png == picture.png
    jobs, _ = await home.backends.catalog.jobs.list(tenant=None, state=None, limit=10_000)
    assert {job.state for job in jobs} == {JobState.SUCCEEDED}
    assert {job.id for job in jobs} == {picture.job.id for picture in got.values()}
    assert len(jobs) == len(got)


async def _cache_index_and_blobs_agree(home: House) -> None:
    catalog, blobs = home.backends.catalog, home.backends.blobs
    (maintainer,) = (one for one in home.process.services if isinstance(one, CacheMaintainerService))
    await asyncio.sleep(0.1)
    await maintainer.flush()
    await asyncio.sleep(1.0)  # every blob is older than the grace
    await maintainer.collect()
    await maintainer.cache.doomed.delete()
    assert await catalog.jobs.to_cache() == []
    async with asyncio.timeout(20):
        while await catalog.entries.unembedded():
            await asyncio.sleep(0.05)

    states = await catalog.entries.states()
    assert states
    for state in states:
        assert len(await blobs.get(state.key, state.sha256)) == state.bytes
    settings, held = home.process.context.settings, maintainer.cache.held
    latents = [state for state in states if not state.is_picture]
    pictured = [state for state in states if state.is_picture]
    assert held.latents.bytes == sum(state.bytes for state in latents) <= settings.cache_max_bytes
    assert len(held.latents) == len(latents)
    assert held.pictures is not None
    assert held.pictures.shelf.bytes == sum(state.bytes for state in pictured) <= settings.picture_max_bytes
    assert len(held.pictures.shelf) == len(pictured)

    items = await catalog.entries.items()
    for vector, owners in (
        ("whole", {state.entry_id for state in latents}),
        ("image", {state.entry_id for state in pictured}),
    ):
        live = {item.entry_id: item.vectors[vector] for item in items if vector in item.vectors}
        found = await home.backends.index.search(vector, next(iter(live.values())), IndexFilter(), 10_000)
        assert {hit.entry_id for hit in found} == set(live) == owners, vector

    assert {blob.key async for blob in blobs.list("states/")} == {state.key for state in latents}
    pictures = {blob.key async for blob in blobs.list("pictures/")}
    assert await catalog.entries.referenced(sorted(pictures)) == pictures
    assert [blob async for blob in blobs.list("checkpoints/")] == []
