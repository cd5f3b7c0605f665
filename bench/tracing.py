"""What traces cost a hit in one process: the same service without them, with a tenth and with all requests traced.

    python -m bench.tracing --rounds 40

One client asks for one image after the other, each a hit: of a no-op model, where nothing hides the cost, and of the
bundled one. Each round has a block of requests of each arm, in random order. A block's spans are sent before it ends,
to a collector in a process of its own. The shares are medians over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import multiprocessing
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean, median
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, record, table
from services.cli.embedded import embedded
from shared.client import AsyncClient
from shared.domain.types import CacheMode
from shared.runtime import tracing
from shared.runtime.loop import run
from shared.runtime.settings import Settings
from shared.runtime.telemetry import configure_logging
from shared.runtime.tracing.otlp import Tracer

GOAL, STEPS = 0.02, 10
"""Largest share that traces of a tenth may cost; T."""
MODELS = ("noop:", "bundled:large")
ARMS = {"off": None, "10 %": 0.1, "100 %": 1.0}
"""Share of the requests that are traced; None: no tracing."""


class _Sink(trace_service_pb2_grpc.TraceServiceServicer):
    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 — gRPC names its methods
        return trace_service_pb2.ExportTraceServiceResponse()


def _collect(told: Connection) -> None:
    """Receive spans until the other end of the pipe closes."""
    server = grpc.server(futures.ThreadPoolExecutor(1))
    add: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    add(_Sink(), server)
    told.send(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    with contextlib.suppress(EOFError):
        told.recv()
    server.stop(None)


@contextlib.contextmanager
def collector() -> Iterator[str]:
    """Yield the endpoint of a collector in a process of its own."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_collect, args=(theirs,))
    process.start()
    theirs.close()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        ours.close()
        process.join()


@dataclass(frozen=True, slots=True)
class Block:
    """Means of the requests of one block, in seconds; processor time of the whole process, sending included."""

    latency_s: float
    cpu_s: float


async def measure(arguments: argparse.Namespace) -> None:
    on, models = machine(), {}
    with collector() as endpoint:
        for model in MODELS:
            models[model] = figures_of(await _blocks(model, endpoint, arguments))
            rows = [(name, *(f"{value:.3f}" for value in of.values())) for name, of in models[model].items()]
            print(f"\n{model}")
            print(table(("traced", "latency, ms", "processor, ms", "latency, of off", "processor, of off"), rows))
    costs = {model: of["10 %"]["cpu_share"] - 1 for model, of in models.items()}
    result = {"models": models, "goal": GOAL, "met": {model: cost <= GOAL for model, cost in costs.items()}}
    settings = {"rounds": arguments.rounds, "block": arguments.block, "steps": STEPS}
    record("tracing", result, settings, on=on, folder=arguments.out)


async def _blocks(model: str, endpoint: str, arguments: argparse.Namespace) -> dict[str, list[Block]]:
    tracers = {name: None if ratio is None else Tracer(endpoint, ratio, "bench") for name, ratio in ARMS.items()}
    blocks, order = {name: list[Block]() for name in ARMS}, random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        chosen = Settings(
            data_dir=Path(folder), listen="127.0.0.1:0", metrics_listen="", http_listen="", large=model,
            video="", segmenter="", check_share=0.0,
        )  # fmt: skip
        async with embedded(chosen) as process, AsyncClient(process.address) as client:
            await client.generate("a red fox in the snow", steps=STEPS)
            await asyncio.sleep(1.0)  # the cache takes its states in
            await _block(client, None, arguments.block)
            gc.collect()
            gc.freeze()  # as `afterimage up` does
            for _ in range(arguments.rounds):
                for name in order.sample(list(ARMS), len(ARMS)):
                    blocks[name].append(await _block(client, tracers[name], arguments.block))
            gc.unfreeze()
    for tracer in filter(None, tracers.values()):
        tracer.close()
    return blocks


async def _block(client: AsyncClient, tracer: Tracer | None, count: int) -> Block:
    tracing.use(tracer)
    seconds = []
    cpu = time.process_time()
    for _ in range(count):
        begun = time.perf_counter()
        # the cache is not written, so that each request finds the same
        picture = await client.generate("a red fox in the snow", steps=STEPS, variation="same", cache=CacheMode.READ)
        seconds.append(time.perf_counter() - begun)
        assert picture.plan.start_step, "a hit"
    if tracer is not None:
        await asyncio.to_thread(tracer.flush)
    tracing.use(None)
    return Block(fmean(seconds), (time.process_time() - cpu) / count)


def figures_of(blocks: dict[str, list[Block]]) -> dict[str, dict[str, float]]:
    """Return medians of the blocks' means in ms, and of their shares of the same round's block without traces."""
    off = blocks["off"]
    return {
        name: {
            "latency_ms": 1000 * median(one.latency_s for one in of),
            "cpu_ms": 1000 * median(one.cpu_s for one in of),
            "latency_share": median(one.latency_s / base.latency_s for one, base in zip(of, off, strict=True)),
            "cpu_share": median(one.cpu_s / base.cpu_s for one, base in zip(of, off, strict=True)),
        }
        for name, of in blocks.items()
    }


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=40, help="blocks of each arm")
    parser.add_argument("--block", type=int, default=20, help="requests of a block")
    arguments = parser.parse_args(given)
    quiet()
    configure_logging("error")
    run(measure(arguments))


if __name__ == "__main__":
    main()
