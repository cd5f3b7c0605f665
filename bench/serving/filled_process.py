"""The embedded mode on a filled data directory, measured from inside its own process.

    python -m bench.serving.filled_process FOLDER      (bench.scale starts this)

FOLDER holds `task.json` (a Task), `queries.npy` and `rows.npy` (embeddings of lookups and of new entries). The figures
are written to FOLDER/figures.json.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.measuring.quiet import quiet
from bench.measuring.recording import quantile
from bench.serving.filled_cache import Rows, another, blobs_of_job, put_blobs
from bench.serving.processes import resident_mib
from bench.weaviate_lookup import search
from protos import retriever_pb2 as pb
from protos.retriever_pb2_grpc import RetrieverServiceStub
from services.cache_maintainer.orphan_collector import Collector
from services.cli.embedded import embedded
from services.match_predictor.service import MatchPredictorService
from shared.client import AsyncClient
from shared.domain.messages import EntriesCached, JobSucceeded
from shared.domain.types import IndexFilter, Job, PlanSource, vector_bytes, visible_owners
from shared.index.memory import MemoryIndex
from shared.models.k_table import EncoderId
from shared.runtime import rpc
from shared.runtime.loop import run as run_on_loop
from shared.runtime.progress import EVERY_S, Remaining
from shared.runtime.rpc_types import plan_from_proto, request_to_proto
from shared.runtime.settings import Settings
from shared.runtime.telemetry import configure_logging
from shared.service import Running

EARLY_S = 10.0
"""Longest seconds of lookups right after the start."""
SETTLED_WITHIN_S = 1800.0
CALL_S = 30.0


@dataclasses.dataclass(frozen=True)
class Task:
    """Input of the process; `begun_at` is the Unix time at which bench.scale started it."""

    data_dir: str
    large: str
    encoder: str
    codec: str
    served_job: str
    truth: list[str]
    """Entry nearest to each query."""
    prompts: list[str]
    """Prompts of whole requests, one each."""
    new_prompts: list[str]
    """Prompts of the inserted jobs, one each."""
    begun_at: float
    limit: int

    @property
    def settings(self) -> Settings:
        return Settings(
            data_dir=Path(self.data_dir), large=self.large, encoder=self.encoder, state_codec=self.codec,
            log_level="error",
        )  # fmt: skip


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Return count, median and 99th percentile in milliseconds."""
    ms = [one * 1000 for one in seconds]
    return {"count": len(ms), "p50_ms": quantile(ms, 0.5), "p99_ms": quantile(ms, 0.99)}


class Lookups:
    """Calls the retriever over gRPC as the gateway does, one call after the other."""

    def __init__(self, process: Running, like: Job, encoder: EncoderId, queries: Rows) -> None:
        self._stub = RetrieverServiceStub(process.context.channel("retriever"))
        self._like, self._encoder, self._queries = like, encoder, queries
        self._next = 0
        self.hits = 0

    async def plan(self) -> float:
        """Return the seconds of one call."""
        number, self._next = self._next % len(self._queries), self._next + 1
        request = dataclasses.replace(self._like.request, user="asker", seed_given=False)
        message = pb.PlanRequest(
            request=request_to_proto(request), tenant=request.tenant, vector=vector_bytes(self._queries[number]),
            encoder_hash=self._encoder.hash, encoder_weights=self._encoder.weights, predicted_hit=True,
            model=self._like.plan.model,
        )  # fmt: skip
        start = time.perf_counter()
        reply = await rpc.call(self._stub.Plan, message, timeout_s=CALL_S)
        taken = time.perf_counter() - start
        self.hits += plan_from_proto(reply.plan).source is PlanSource.LATENT
        return taken

    async def many(self, count: int, *, longest_s: float = CALL_S * 20) -> list[float]:
        until, taken = time.monotonic() + longest_s, list[float]()
        while len(taken) < count and time.monotonic() < until:
            taken.append(await self.plan())
        return taken

    async def during(self, work: Callable[[], Awaitable[object]]) -> tuple[float, list[float]]:
        """Return the seconds of `work`, and of the lookups made meanwhile."""
        start, task, taken = time.monotonic(), asyncio.ensure_future(work()), list[float]()
        while not task.done():
            taken.append(await self.plan())
            await asyncio.sleep(0.01)
        await task
        return time.monotonic() - start, taken


async def settled(process: Running) -> None:
    """Wait until index and match predictor hold every entry in their graphs."""
    (predictor,) = (one for one in process.services if isinstance(one, MatchPredictorService))
    index = process.context.backends.index
    assert isinstance(index, MemoryIndex)
    begun = time.monotonic()
    building = asyncio.gather(predictor.built.wait(), index.settled())
    while not (await asyncio.wait([building], timeout=EVERY_S))[0]:
        taken = time.monotonic() - begun
        print(f"graphs are being built for {taken:.0f} s", flush=True)
        if taken > SETTLED_WITHIN_S:
            raise SystemExit(f"filled_process: the graphs are not built within {SETTLED_WITHIN_S:.0f} s")


async def whole_requests(client: AsyncClient, prompts: Sequence[str]) -> dict[str, Any]:
    """Generate one image per prompt, one after the other."""
    remaining, taken, parts = Remaining("whole requests", len(prompts)), list[float](), dict[str, list[float]]()
    hits = 0
    for prompt in prompts:
        start = time.perf_counter()
        picture = await client.generate(prompt, user="asker")
        taken.append(time.perf_counter() - start)
        hits += picture.plan.source is PlanSource.LATENT
        for name in ("embed_s", "predict_s", "plan_s"):
            parts.setdefault(name, []).append(getattr(picture.timings, name))
        remaining.advance()
    return {**spread(taken), "hits": hits, "parts": {name: spread(values) for name, values in parts.items()}}


async def insertion(process: Running, like: Job, task: Task, rows: Rows) -> dict[str, Any]:
    """Publish the end of finished jobs; return the rate at which the cache maintainer makes entries of them."""
    backends = process.context.backends
    contents, jobs = await blobs_of_job(backends.blobs, like), list[Job]()
    remaining = Remaining("jobs to insert", len(rows))
    for number, row in enumerate(rows):
        made = another(like, 10**6 + number, task.new_prompts[number], vector_bytes(row))
        assert made.result is not None
        await put_blobs(backends.blobs, made, like, contents)
        queued = dataclasses.replace(made, state=like.state.QUEUED, result=None, attempt=0, worker="", lane="")
        await backends.catalog.jobs.accept(queued, durable=False)
        claimed = await backends.catalog.jobs.claim(made.id, "bench", 600.0)
        assert claimed is not None
        assert await backends.catalog.jobs.finish(made.id, claimed.attempt, made.result)
        jobs.append(made)
        remaining.advance()
    waiting, done = {job.id for job in jobs}, asyncio.Event()

    async def cached(message: Any) -> None:
        waiting.difference_update(message.entry_ids)
        if not waiting:
            done.set()

    subscription = await backends.bus.subscribe([EntriesCached], cached)
    start = time.monotonic()
    for job in jobs:
        await backends.bus.publish(JobSucceeded(job.id, 1, "bench"))
    async with asyncio.timeout(600.0):
        await done.wait()
    taken = time.monotonic() - start
    await subscription.close()
    return {"entries": len(jobs), "seconds": taken, "per_s": len(jobs) / taken}


async def measure(folder: Path) -> dict[str, Any]:
    task = Task(**json.loads((folder / "task.json").read_text()))
    queries, rows = np.load(folder / "queries.npy"), np.load(folder / "rows.npy")
    settings, imported_at = task.settings, time.time()
    async with embedded(settings) as process, AsyncClient(process.address) as client:
        ready_at = time.time()
        found: dict[str, Any] = {
            "start_s": ready_at - task.begun_at,
            "start_cpu_s": time.process_time(),
            "imports_s": imported_at - task.begun_at,
            "rss_ready_mib": resident_mib(os.getpid()),
        }
        gc.collect()
        gc.freeze()  # as `afterimage up` does
        like = await process.context.backends.catalog.jobs.get(task.served_job)
        encoder = EncoderId(like.encoder_hash, "")
        lookups = Lookups(process, like, encoder, queries)
        found["early"] = spread(await lookups.many(len(queries), longest_s=EARLY_S))
        await settled(process)
        found["settled_s"] = time.time() - ready_at
        lookups.hits = 0
        await lookups.many(50)  # warm
        lookups.hits = 0
        found["plan"] = {**spread(await lookups.many(len(queries))), "hits": lookups.hits}
        found["rss_mib"] = resident_mib(os.getpid())
        where = IndexFilter(str(like.result.compat) if like.result else "", _owners(like), like.encoder_hash)
        found["search"] = await search(process.context.backends.index, queries, task.truth, where, task.limit)
        found["request"] = await whole_requests(client, task.prompts)
        found["insert"] = await insertion(process, like, task, rows)
        found["collector"] = await collection(process, settings, lookups)
        found["rss_end_mib"] = resident_mib(os.getpid())
        found["rss_most_mib"] = resident_mib(os.getpid(), most=True)
    return found


async def collection(process: Running, settings: Settings, lookups: Lookups) -> dict[str, Any]:
    """Return the seconds of one pass over every blob, and the lookups meanwhile."""
    # without a grace the pass asks for every blob, however young
    own = settings.model_copy(update={"blob_grace_s": 0.0})
    collector = Collector(process.context.backends, process.context.clock, own, lambda: None)
    blobs = 0

    async def once() -> None:
        nonlocal blobs
        blobs = (await collector.collect(only_look=True)).blobs

    print("one pass of the collector", flush=True)
    seconds, taken = await lookups.during(once)
    return {"seconds": seconds, "blobs": blobs, "plan": spread(taken)}


def _owners(like: Job) -> tuple[str, ...]:
    return tuple(visible_owners(like.request.tenant, "asker"))


def main() -> None:
    quiet()
    configure_logging("error")
    folder = Path(sys.argv[1])
    found = run_on_loop(measure(folder))
    (folder / "figures.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
