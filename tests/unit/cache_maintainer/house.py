"""A running maintainer on the real in-process ports, alone or with the embedder, and shorthands."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import grpc
import numpy as np
from PIL import Image

from protos import embedder_pb2
from protos.cache_maintainer_pb2_grpc import CacheMaintainerServiceStub
from protos.embedder_pb2_grpc import EmbedderServiceStub
from services.cache_maintainer.service import CacheMaintainerService
from services.embedder.service import EmbedderService
from shared.domain.errors import BlobMissingError
from shared.domain.messages import EntriesCached, EntriesEvicted, JobSucceeded, Message
from shared.domain.types import Entry, IndexFilter, Job, Request, vector_from
from shared.runtime.clock import ManualClock
from shared.runtime.settings import Settings
from shared.runtime.telemetry import METRICS
from shared.service import running
from shared.service.backends import Backends
from shared.service.pairing import SEAL_KEY, Seal
from tests.unit.cached import MODEL, finished_job, measured, request, unit
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


def png(seed: int, side: int = 64) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (side, side, 3), dtype=np.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()


@dataclass
class Home:
    maintainer: CacheMaintainerService
    backends: Backends
    embedder: EmbedderServiceStub
    encoder: str = ""
    heard: set[str] = field(default_factory=set)

    async def finish(self, prompt: str, seed: int, **more: Any) -> Job:
        """A job whose prompt was never embedded, in the cache with its picture."""
        more = {"picture": png(seed), "encoder": "", **more}
        job = await finished_job(self.backends, request(prompt), None, **more)
        await self.backends.bus.publish(JobSucceeded(job.id, 1))
        await self.until(lambda: self.known(job.id))
        return job

    async def known(self, entry_id: str) -> bool:
        """True if its picture waits for the embedder, too: that is noted a moment after the row."""
        return entry_id in self.heard and bool(await self.backends.catalog.entries.by_ids([entry_id]))

    async def until(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(20):
            while not await holds():
                await asyncio.sleep(0.01)

    async def embedded(self) -> None:
        async def none_left() -> bool:
            return not await self.backends.catalog.entries.unembedded()

        await self.until(none_left)
        async with self.maintainer.cache._lock:  # and the index knows
            pass

    async def found(self, seed: int) -> list[str]:
        """Whose picture looks exactly like this one."""
        reply = await self.embedder.EmbedImage(embedder_pb2.EmbedImageRequest(images=[png(seed)]))
        vector = vector_from(reply.embeddings[0].vector)
        hits = await self.backends.index.search("image", vector, IndexFilter(encoder_hash=reply.encoder_hash), 10)
        return [hit.entry_id for hit in hits if hit.similarity > 0.9999]


@contextlib.asynccontextmanager
async def home(settings: Settings, *, may_start: bool = True, **changes: Any) -> AsyncIterator[Home]:
    changes = {"large": MODEL, "cache_batch_s": 0.0, "picture_batch_s": 0.0, **changes}
    settings = settings.model_copy(update=changes)
    if may_start:
        await measured(settings)
    maintainer = CacheMaintainerService()
    async with running([maintainer, EmbedderService()], settings) as process:
        stub = EmbedderServiceStub(process.context.channel("embedder"))
        made = Home(maintainer, process.context.backends, stub)
        hear = maintainer._pictures.hear

        def noted(entries: Iterable[Entry]) -> bool:
            came = list(entries)
            made.heard.update(entry.id for entry in came)
            return hear(came)

        setattr(maintainer._pictures, "hear", noted)  # noqa: B010 — a method
        yield made


async def old_orphans(home: House, count: int) -> list[str]:
    """Blobs without a row, older than the grace."""
    keys = [f"states/nobody{number}/1/5.safetensors" for number in range(count)]
    await asyncio.gather(*(home.backends.blobs.put(key, b"x", durable=False) for key in keys))
    await asyncio.sleep(0.2)
    return keys


def held(reason: str) -> float:
    return float(METRICS.collection_held.labels(reason)._value.get())


async def steal(home: House) -> None:
    """Somebody put another store behind the same URL."""
    other = Seal("another-store", "another-catalog", "elsewhere")
    await home.backends.blobs.put(SEAL_KEY, json.dumps(asdict(other)).encode())
