"""Floors of a hit in the cluster mode: each call of its path, made alone. Their sum is a lower bound of the path's
time.

The calls go through the path's own adapters, with the row, the state and the image of an earlier hit. They run one at a
time, while the stack has no other work.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bench.measuring.recording import quantile
from shared.domain.ids import new_id
from shared.domain.messages import GenerateImage, JobSucceeded, Message
from shared.domain.types import CacheMode, IndexFilter, Job, JobState, PlanSource, vector_from, visible_owners
from shared.runtime import rpc
from shared.service.backends import Backends

T = TypeVar("T")

LANE = "generate.floors"
"""A lane that no worker consumes."""


@dataclass(frozen=True)
class Call:
    """One call that a hit waits for."""

    name: str
    kind: str
    """`commit`, `confirm`, `blobs` or `index`, whose sum is the unit of the goal; or `read` and `rpc`."""
    why: str
    times: int = 1
    """Number of times that the path makes this call."""
    beside: str = ""
    """Name of the call that runs at the same time."""


COUNTED = ("commit", "confirm", "blobs", "index")
CALLS = (
    Call("rpc", "rpc", "client to gateway; gateway to embedder, match predictor and retriever: four processes", 4),
    Call("index search", "index", "finds the entries near the prompt, and so the hit"),
    Call("commit: accept", "commit", "accepted jobs survive a crash; job and idempotency key are written together"),
    Call("confirm: task", "confirm", "a majority of the broker's nodes has the task, or the sweeper sends it again"),
    Call("commit: claim", "commit", "one worker runs the job: a compare-and-set that never issues an attempt twice"),
    Call(
        "blob: state got",
        "blobs",
        "the start of the image; messages carry no latents",
        beside="commit: claim",
    ),
    Call("blob: picture put", "blobs", "stored before the row names it: a row never names a missing blob"),
    Call("commit: finish", "commit", "the first commit wins, so a job has exactly one result"),
    Call(
        "fact heard",
        "confirm",
        "the event wakes the waiting gateway; no process waits for its confirm",
    ),
    Call("row read", "read", "the row decides the answer: events may be lost, late or repeated"),
    Call(
        "blob: picture got",
        "blobs",
        "the gateway reads the image and checks its hash",
        beside="row read",
    ),
)
"""Calls in the order of the path. Left out are calls that no request waits for: the event's confirm, the row's
`confirmed` mark, `JobQueued`, `StateUsed`, progress, captured states (stored while later steps run), the
acknowledgement, cache upkeep."""


class Floors:
    """Seconds of each call, collected over any number of rounds."""

    def __init__(self, backends: Backends, addresses: Sequence[str], hit: Job) -> None:
        """Prepare the calls; `addresses` are gRPC servers to call in turn, `hit` a finished job that started from a
        cached state."""
        assert hit.result is not None
        assert hit.plan.source is PlanSource.LATENT
        self.taken: dict[str, list[float]] = defaultdict(list)
        self._backends, self._hit, self._addresses = backends, hit, addresses
        self._result = hit.result
        self._where = IndexFilter(
            compat=str(hit.result.compat),
            owners=visible_owners(hit.request.tenant, hit.request.user),
            encoder_hash=hit.encoder_hash,
        )
        self._vector = vector_from(hit.vector)

    async def measure(self, count: int) -> None:
        """Make each call `count` times, in the order of the path."""
        heard = _Heard()
        async with _channels(self._addresses) as stubs:
            subscription = await self._backends.bus.subscribe([JobSucceeded], heard)
            receiver = await self._backends.bus.receive([LANE], prefetch=1)
            try:
                for number in range(count):
                    await self._once(stubs[number % len(stubs)], receiver, heard)
            finally:
                await receiver.close()
                await subscription.close()

    async def _once(self, stub: Any, receiver: Any, heard: _Heard) -> None:
        catalog, blobs, bus = self._backends.catalog, self._backends.blobs, self._backends.bus
        plan, result = self._hit.plan, self._result
        await self._timed("rpc", lambda: stub.Check(health_pb2.HealthCheckRequest(), timeout=10.0))
        await self._timed("index search", lambda: self._backends.index.search("whole", self._vector, self._where, 8))
        job = self._fresh()
        accepting = partial(catalog.jobs.accept, idempotency_key=job.id, caller="floors", body_hash="0")
        await self._timed("commit: accept", lambda: accepting(job))
        sent = time.monotonic()
        task = GenerateImage(job.id, plan.state_key, plan.state_sha256)
        await self._timed("confirm: task", lambda: bus.send(LANE, task))
        delivery = await receiver.get()
        self.taken["task delivered"].append(time.monotonic() - sent)
        claimed = await self._timed("commit: claim", lambda: catalog.jobs.claim(job.id, "floors", 60.0))
        if claimed is None:  # a gateway's sweep moved the job to a worker, since no worker consumes this lane
            await delivery.ack()
            return
        await self._timed("blob: state got", lambda: blobs.get(plan.state_key, plan.state_sha256))
        picture = await self._timed("blob: picture got", lambda: blobs.get(result.picture_key, result.picture_sha256))
        await self._timed("blob: picture put", lambda: blobs.put(f"pictures/{job.id}-1.png", picture))
        done = replace(result, picture_key=f"pictures/{job.id}-1.png", captured=())
        assert await self._timed("commit: finish", lambda: catalog.jobs.finish(job.id, claimed.attempt, done))
        told = time.monotonic()
        fact = JobSucceeded(job.id, claimed.attempt, picture_key=done.picture_key, picture_sha256=done.picture_sha256)
        await self._timed("fact confirmed", lambda: bus.publish(fact))
        self.taken["fact heard"].append(await heard.at(job.id) - told)
        await self._timed("row read", lambda: catalog.jobs.get(job.id))
        await delivery.ack()

    def _fresh(self) -> Job:
        """Return a new job with the request and plan of the hit, as before its run; the cache does not take its
        image."""
        request = replace(self._hit.request, cache=CacheMode.READ)
        return replace(
            self._hit, id=new_id(), request=request, state=JobState.QUEUED, lane=LANE, attempt=0, result=None, worker=""
        )

    async def _timed(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        start = time.monotonic()
        answer = await call()
        self.taken[name].append(time.monotonic() - start)
        return answer

    def p50_ms(self, name: str) -> float:
        return quantile(self.taken[name], 0.5) * 1000

    def sum_ms(self, kinds: Sequence[str] = COUNTED) -> float:
        """Sum the path's calls of these kinds, each as often as the path makes it, in milliseconds."""
        return sum(call.times * self.p50_ms(call.name) for call in CALLS if call.kind in kinds)

    def chain_ms(self) -> float:
        """Sum all calls of the path in milliseconds; of two calls at the same time, the longer one."""
        own = {call.name: call.times * self.p50_ms(call.name) for call in CALLS}
        return sum(own.values()) - sum(min(own[call.name], own[call.beside]) for call in CALLS if call.beside)

    def figures(self) -> dict[str, Any]:
        return {
            name: {"calls": len(taken), "p50_ms": quantile(taken, 0.5) * 1000, "p99_ms": quantile(taken, 0.99) * 1000}
            for name, taken in self.taken.items()
        }


class _Heard:
    """Times at which the events of ended jobs arrived."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._news = asyncio.Event()

    async def __call__(self, fact: Message) -> None:
        if isinstance(fact, JobSucceeded):
            self._at[fact.job_id] = time.monotonic()
            self._news.set()

    async def at(self, job_id: str) -> float:
        async with asyncio.timeout(10.0):
            while job_id not in self._at:
                self._news.clear()
                await self._news.wait()
        return self._at[job_id]


@contextlib.asynccontextmanager
async def _channels(addresses: Sequence[str]) -> AsyncIterator[list[Any]]:
    """Open a warm health stub for each address."""
    async with contextlib.AsyncExitStack() as opened:
        stubs = []
        for address in addresses:
            channel = grpc.aio.insecure_channel(address, options=rpc.channel_options(2**20))
            stubs.append(health_pb2_grpc.HealthStub(await opened.enter_async_context(channel)))
            await stubs[-1].Check(health_pb2.HealthCheckRequest(), timeout=10.0)
        yield stubs
