"""A running worker over real ports in a temporary folder."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from services.gpu_worker.jobs.codecs import decode_png
from services.gpu_worker.service import GpuWorkerService
from shared.domain.messages import (
    GenerateImage,
    JobCancelled,
    JobFailed,
    JobSucceeded,
    Message,
    Progress,
    StateLost,
    StateUsed,
    lane_of,
)
from shared.domain.types import Entry, Job, JobState, Plan, PlanSource, Request, Scope, Size, Source, State
from shared.runtime.clock import SystemClock
from shared.runtime.settings import Settings
from shared.service import Context
from shared.service.backends import Backends, open_backends
from shared.service.pairing import SEAL_KEY

STEPS = 10
SLOW = "noop:?step_ms=20"
"""Time to interfere."""
_numbers = itertools.count()


class WorkerBench:
    """Everything around one worker: ports, facts heard, and shorthands."""

    def __init__(self, settings: Settings, backends: Backends) -> None:
        self.settings, self.backends = settings, backends
        self.jobs, self.blobs = backends.catalog.jobs, backends.blobs
        self.facts: list[Message] = []
        self.context = Context(settings, backends, SystemClock())
        self.service = GpuWorkerService()

    @property
    def model(self) -> str:
        return self.service._place.card.name

    async def listen(self) -> None:
        async def hear(fact: Message) -> None:
            self.facts.append(fact)

        await self.backends.bus.subscribe([JobSucceeded, JobFailed, JobCancelled, Progress, StateUsed, StateLost], hear)

    def heard(self, kind: type[Any], job_id: str = "") -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind) and job_id in ("", getattr(fact, "job_id", ""))]

    async def told(self, kind: type[Any], job_id: str = "", count: int = 1) -> list[Any]:
        """The facts of a kind, once there are so many: they come a moment after the row."""
        async with asyncio.timeout(20):
            while len(heard := self.heard(kind, job_id)) < count:
                await asyncio.sleep(0.005)
        return heard

    async def accept(self, plan: Plan | None = None, **changes: Any) -> Job:
        """A job row, not sent yet."""
        request = replace(Request(prompt="a red fox", size=Size(64, 64), steps=STEPS, guidance=2.5, seed=7), **changes)
        plan = plan or Plan(source=PlanSource.NOISE, model=self.model, capture_steps=(2, 4))
        job = Job(
            id=f"job{next(_numbers)}", request=request, plan=plan, state=JobState.QUEUED, lane=lane_of(plan.model)
        )
        return (await self.jobs.accept(job))[0]

    async def send(self, job: Job, *, previews: bool = False) -> None:
        task = GenerateImage(job.id, previews=previews, only=job.attempt > 0)
        await self.backends.bus.send(lane_of(self.model), task)

    async def draw(self, plan: Plan | None = None, **changes: Any) -> Job:
        """The finished row of a new job."""
        job = await self.accept(plan, **changes)
        await self.send(job)
        return await self.final(job.id)

    async def final(self, job_id: str, timeout_s: float = 20.0) -> Job:
        return await self.until(lambda job: job.state.final, job_id, timeout_s, every_s=0.02)

    async def until(
        self, holds: Callable[[Job], bool], job_id: str, timeout_s: float = 20.0, every_s: float = 0.005
    ) -> Job:
        async with asyncio.timeout(timeout_s):
            # the row is the truth, and rows are polled
            while not holds(job := await self.jobs.get(job_id)):
                await asyncio.sleep(every_s)  # each read takes a millisecond of the engine's time
        return job

    async def idle(self) -> None:
        """Until every delivery was settled."""
        async with asyncio.timeout(10):
            while self.service._tasks.lanes.in_hand:
                await asyncio.wait(self.service._tasks.lanes.in_hand)

    async def cache(self, job: Job) -> Entry:
        """What the cache maintainer would make of a finished job."""
        assert job.result is not None
        assert job.result.compat is not None
        entry = Entry(
            id=f"entry-{job.id}",
            job_id=job.id,
            prompt=job.request.prompt,
            tenant="default",
            user="",
            scope=Scope.TENANT,
            model=job.plan.model,
            compat=job.result.compat,
            exact_key="",
            picture_key=job.result.picture_key,
            picture_sha256=job.result.picture_sha256,
            encoder_hash="",
            created_at=0.0,
            states=tuple(
                State(f"entry-{job.id}", one.step, one.key, one.bytes, one.codec, one.sha256)
                for one in job.result.captured
            ),
        )
        assert await self.backends.catalog.entries.add(entry, {})
        return entry

    def hit(self, entry: Entry, step: int, **changes: Any) -> Plan:
        state = next(state for state in entry.states if state.step == step)
        plan = Plan(
            source=PlanSource.LATENT,
            model=self.model,
            start_step=step,
            sources=(Source(entry.id, state.key, state.sha256, state.codec),),
            weights_hash=entry.compat.weights_hash,
        )
        return replace(plan, **changes)

    async def picture(self, job: Job) -> np.ndarray:
        assert job.result is not None, job.error
        return decode_png(await self.blobs.get(job.result.picture_key, job.result.picture_sha256))

    async def keys(self, prefix: str = "") -> list[str]:
        """Keys of blobs; the store's own id is no job's."""
        return [blob.key async for blob in self.blobs.list(prefix) if blob.key != SEAL_KEY]


@contextlib.asynccontextmanager
async def running_worker(folder: Path, large: str, **changes: Any) -> AsyncIterator[WorkerBench]:
    settings = Settings(data_dir=folder, large=large, device="cpu", metrics_listen="", torch_threads=1, **changes)
    backends = await open_backends(settings)
    bench = WorkerBench(settings, backends)
    await bench.listen()
    await bench.service.start(bench.context)
    try:
        yield bench
    finally:
        await bench.service.drain(0.1)
        await bench.service.stop()
        await backends.close()
