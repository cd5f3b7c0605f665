"""The whole of Afterimage in the test's own process, as `afterimage up` starts it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from protos import cache_maintainer_pb2, match_predictor_pb2
from protos.cache_maintainer_pb2_grpc import CacheMaintainerServiceStub
from protos.match_predictor_pb2_grpc import MatchPredictorServiceStub
from services.cli.embedded import all_services
from services.retriever.service import RetrieverService
from shared.client import AsyncClient, Picture
from shared.domain.types import CacheMode, JobState, PlanSource
from shared.runtime.clock import Clock
from shared.runtime.settings import Settings
from shared.service import Running, Service, running

SLOW = "noop:?step_ms=20"
"""A denoiser that only waits: what a job does between two steps can be timed."""


@dataclass
class House:
    process: Running
    client: AsyncClient
    retriever: RetrieverService | None = None

    @property
    def backends(self) -> Any:
        return self.process.context.backends

    async def generate(self, prompt: str, **fields: Any) -> Picture:
        """One picture in ten steps (K ∈ 1…5) from anything that the bounds allow, and the cache has taken in what it
        left."""
        picture = await self.client.generate(prompt, **{"steps": 10, "variation": "same", **fields})
        await self.settled(picture)
        return picture

    async def claimed(self, job_id: str) -> None:
        """Until a worker has the job."""
        async with asyncio.timeout(20.0):
            while (await self.backends.catalog.jobs.get(job_id)).state is not JobState.RUNNING:
                await asyncio.sleep(0.01)

    async def settled(self, picture: Picture, timeout_s: float = 20.0) -> None:
        """Until the picture's entry answers repeats and, when it has states, search and predictor know it, and the
        retriever counts it for the rules of variety."""
        writes = picture.job.request.cache in (CacheMode.AUTO, CacheMode.WRITE)
        if not writes or picture.plan.source is PlanSource.EXACT:
            return
        maintainer: Any = CacheMaintainerServiceStub(self.process.context.channel("cache_maintainer"))
        predictor: Any = MatchPredictorServiceStub(self.process.context.channel("match_predictor"))
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            page = await maintainer.Inspect(cache_maintainer_pb2.InspectRequest(page_size=1000), timeout=5.0)
            known = await predictor.Stats(match_predictor_pb2.StatsRequest(), timeout=5.0)
            searched = [entry for entry in page.entries if entry.states]
            cached = picture.job.id in {entry.id for entry in page.entries}
            if cached and known.entries >= len(searched) and self._counted(picture.job.id):
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"the cache did not take in {picture.job.request.prompt!r}")

    def _counted(self, entry_id: str) -> bool:
        return self.retriever is None or self.retriever._entries.seen.owner_of(entry_id) is not None


@contextlib.asynccontextmanager
async def house(
    settings: Settings, *, without: Sequence[str] = (), plus: Sequence[Service] = (), clock: Clock | None = None
) -> AsyncIterator[House]:
    """Everything but the services named in `without`, and those in `plus` instead."""
    services = [service for service in all_services(settings.workers) if service.name not in without]
    async with (
        running([*services, *plus], settings, clock=clock) as process,
        AsyncClient(process.address, retry_s=0.0) as client,
    ):
        retriever = next((one for one in services if isinstance(one, RetrieverService)), None)
        yield House(process, client, retriever)
