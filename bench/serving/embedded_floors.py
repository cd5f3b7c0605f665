"""Floors of a request in the embedded mode: its calls, thread hops, rows and synced writes, each measured alone.

Each floor goes through the adapters and the event loop that requests use, with the row and the image of an earlier
request. Each floor is measured back to back, and after pauses as between requests on an idle service. At the end all
floors run in the order of a request, inside one gRPC call: a request without decisions.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from bench.measuring.recording import quantile, table
from protos import embedder_pb2 as pb
from protos.embedder_pb2_grpc import EmbedderServiceServicer, EmbedderServiceStub, add_EmbedderServiceServicer_to_server
from shared.domain.ids import new_id
from shared.domain.types import CacheMode, Job, JobState
from shared.runtime import rpc, rpc_server
from shared.runtime.direct import DirectChannel
from shared.service.backends import Backends

MESSAGE_BYTES = 2**20
WHOLE = "a request that decides nothing"
FLOORS = (
    ("calls", "one gRPC call, which makes three calls within the process"),
    ("hop", "a thread and back: the encoder's"),
    ("accept", "job row and idempotency key, not synced"),
    ("claim", "the row claimed, not synced"),
    ("hop", "a thread and back: the engine's"),
    ("put", "image stored and synced (a thread and back)"),
    ("finish", "the row finished and synced (a thread and back)"),
    ("row", "the row read"),
    ("get", "the image read"),
)
"""Name and reason of each floor, in the order of a request."""

Steps = dict[str, Callable[[], Awaitable[object]]]


@dataclass(frozen=True, slots=True)
class Floor:
    """Median seconds of one floor: back to back, and after a pause."""

    warm_s: float
    paused_s: float


class _Bare(EmbedderServiceServicer):
    """A service whose handler runs `work` and returns an empty answer."""

    def __init__(self, work: Callable[[], Awaitable[object]] | None = None) -> None:
        self.work = work

    async def EmbedText(self, request: pb.EmbedTextRequest, context: Any) -> pb.EmbedTextResponse:  # noqa: N802
        if self.work is not None:
            await self.work()
        return pb.EmbedTextResponse()


@contextlib.asynccontextmanager
async def _serving(
    servicer: _Bare, address: str, *, direct: bool = False
) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """Serve the servicer and return a call with the options, guard and timeout of every service. direct: call it as
    services of one process call each other."""
    options = rpc.channel_options(MESSAGE_BYTES)
    server = rpc_server.server([*options, *rpc_server.server_options()])
    add_EmbedderServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port(address)
    await server.start()
    target = address if address.startswith("unix:") else f"127.0.0.1:{port}"
    async with grpc.aio.insecure_channel(target, options=options) as channel:
        called: Any = DirectChannel(channel, server, MESSAGE_BYTES) if direct else channel
        stub, message = EmbedderServiceStub(called), pb.EmbedTextRequest(texts=["a red fox in the snow"])
        yield lambda: rpc.call(stub.EmbedText, message, timeout_s=10.0)
    await server.stop(None)


class _Rows:
    """Write one finished job after the other to the catalog and the blob store."""

    def __init__(self, backends: Backends, drawn: Job, picture: bytes) -> None:
        assert drawn.result is not None
        self._jobs, self._blobs, self._picture = backends.catalog.jobs, backends.blobs, picture
        # the cache ignores jobs that it may not take
        request = replace(drawn.request, cache=CacheMode.READ)
        self._drawn = replace(drawn, request=request, state=JobState.QUEUED, lane="", attempt=0, result=None)
        self._result = replace(drawn.result, captured=())
        self._id = ""

    async def accept(self) -> None:
        self._id = new_id()
        job = replace(self._drawn, id=self._id)
        await self._jobs.accept(job, idempotency_key=self._id, caller="floors", body_hash="0", durable=False)

    async def claim(self) -> None:
        assert await self._jobs.claim(self._id, "floors", 60.0)

    async def put(self) -> None:
        await self._blobs.put(self._key, self._picture)

    async def finish(self) -> None:
        assert await self._jobs.finish(self._id, 1, replace(self._result, picture_key=self._key))

    async def row(self) -> None:
        await self._jobs.get(self._id)

    async def get(self) -> None:
        await self._blobs.get(self._key, self._result.picture_sha256)

    @property
    def _key(self) -> str:
        return f"pictures/{self._id}-1.png"


async def measure(backends: Backends, drawn: Job, *, count: int, pause_s: float) -> dict[str, Floor]:
    """Return the floors by name, and WHOLE; `drawn` is a finished job with its image in the blob store."""
    assert drawn.result is not None
    rows = _Rows(backends, drawn, await backends.blobs.get(drawn.result.picture_key))
    steps: Steps = {
        "hop": partial(asyncio.to_thread, int),
        "accept": rows.accept,
        "claim": rows.claim,
        "put": rows.put,
        "finish": rows.finish,
        "row": rows.row,
        "get": rows.get,
    }
    with tempfile.TemporaryDirectory(prefix="afterimage-bench-") as folder:
        async with _serving(_Bare(), f"unix:{Path(folder) / 'inner'}", direct=True) as inner:
            outer = _Bare()
            async with _serving(outer, "127.0.0.1:0") as call:
                warm, paused = await _alone(outer, inner, call, steps, count, 0.0), dict[str, list[float]]()
                if pause_s:
                    paused = await _alone(outer, inner, call, steps, count, pause_s)
    return {name: Floor(quantile(warm[name], 0.5), quantile(paused.get(name, warm[name]), 0.5)) for name in warm}


async def _alone(
    outer: _Bare,
    inner: Callable[[], Awaitable[object]],
    call: Callable[[], Awaitable[object]],
    steps: Steps,
    count: int,
    pause_s: float,
) -> dict[str, list[float]]:
    """Return seconds of each step alone, `count` times in a row or each after a pause, then of all steps together."""

    async def three() -> None:
        for _ in range(3):
            await inner()

    async def everything() -> None:
        await three()
        for name, _ in FLOORS[1:]:
            await steps[name]()

    taken: dict[str, list[float]] = {name: [] for name in ("calls", *steps, WHOLE)}
    for _ in range(count):
        outer.work = three
        for name, step in {"calls": call, **steps}.items():
            taken[name].append(await _timed(step, pause_s))
        outer.work = everything
        taken[WHOLE].append(await _timed(call, pause_s))
    return taken


async def _timed(step: Callable[[], Awaitable[object]], pause_s: float) -> float:
    await asyncio.sleep(pause_s)
    start = time.monotonic()
    await step()
    return time.monotonic() - start


def figures(found: dict[str, Floor]) -> dict[str, Any]:
    """Return the floors in milliseconds, and their sum for a request."""
    in_ms = {name: {"warm_ms": one.warm_s * 1000, "paused_ms": one.paused_s * 1000} for name, one in found.items()}
    sums = {kind: sum(in_ms[name][kind] for name, _ in FLOORS) for kind in ("warm_ms", "paused_ms")}
    return {**in_ms, "sum": sums}


def report(found: dict[str, Any]) -> str:
    rows = [[why, found[name]["warm_ms"], found[name]["paused_ms"]] for name, why in FLOORS]
    rows += [["their sum", *found["sum"].values()], [f"all in order: {WHOLE}", *found[WHOLE].values()]]
    return "\n" + table(["alone, ms (p50)", "right after itself", "after a pause"], rows)
