"""A running maintainer on the real in-process ports, and shorthands."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from protos.cache_maintainer_pb2_grpc import CacheMaintainerServiceStub
from services.cache_maintainer.service import CacheMaintainerService
from shared.domain.errors import BlobMissingError
from shared.domain.messages import EntriesCached, EntriesEvicted, JobSucceeded, Message
from shared.domain.types import IndexFilter, Request
from shared.runtime.clock import ManualClock
from shared.runtime.settings import Settings
from shared.service import running
from shared.service.backends import Backends
from tests.unit.cached import finished_job, unit
from tests.unit.facts import heard


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
        await heard(self.backends.bus)
        await self.service.flush()
        async with self.service.cache._lock:  # a batch that had begun before
            pass
        await heard(self.backends.bus)

    async def found(self, seed: int) -> list[str]:
        hits = await self.backends.index.search("whole", unit(seed), IndexFilter(), 10)
        return [hit.entry_id for hit in hits if hit.similarity > 0.99]

    async def steps(self, entry_id: str) -> list[int]:
        return [state.step for state in (await self.backends.catalog.entries.get(entry_id)).latents]

    async def has(self, key: str) -> bool:
        try:
            await self.backends.blobs.get(key)
        except BlobMissingError:
            return False
        return True


@contextlib.asynccontextmanager
async def house(settings: Settings, clock: ManualClock | None = None) -> AsyncIterator[House]:
    service = CacheMaintainerService()
    async with (
        running([service], settings, clock=clock) as process,
        grpc.aio.insecure_channel(process.address) as channel,
    ):
        made = House(service, process.context.backends, CacheMaintainerServiceStub(channel))
        await made.backends.bus.subscribe([EntriesCached, EntriesEvicted], made.hear)
        yield made


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
