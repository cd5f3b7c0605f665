"""What the HTTP interface costs: the first byte of an exact repeat beside gRPC, partial images, idle streams.

    python -m bench.http_costs

Each figure compares two ways in pairs, in random order, so that drift of the machine meets both alike: an exact repeat
over HTTP and over gRPC; a generation of the bundled `large` with three partial images and without; a burst of
generations by a no-op model with idle streams of the console and without. Another process holds the streams.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, quantile, record, settings_of, table
from services.cli.embedded import all_services
from shared.client import AsyncClient
from shared.domain.identity import Role, issued, principal_of
from shared.runtime.loop import run
from shared.runtime.settings import Settings
from shared.runtime.telemetry import configure_logging
from shared.service import Running, running
from shared.service.door import EVERY_S

REPEAT_GOAL_S, PARTIAL_GOAL, STREAMS_GOAL = 0.002, 0.03, 0.02
CLIENTS, STEPS = 8, 50
REPEAT: dict[str, Any] = {"prompt": "a red fox in the snow", "seed": 7, "num_inference_steps": 10}
HOLDER = """
import asyncio, sys
async def one(host, port, cookie, count):
    reader, writer = await asyncio.open_connection(host, port)
    lines = ("GET /console/api/events HTTP/1.1", f"Host: {host}:{port}", f"Cookie: {cookie}", "", "")
    writer.write("\\r\\n".join(lines).encode())
    assert b" 200 " in await reader.readline()
    count.append(1)
    while await reader.read(65536):
        pass
async def main(host, port, cookie, wanted):
    count = []
    tasks = [asyncio.create_task(one(host, int(port), cookie, count)) for _ in range(int(wanted))]
    while len(count) < len(tasks):
        await asyncio.sleep(.05)
    print("open", flush=True)
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    print("a stream ended", flush=True)
asyncio.run(main(*sys.argv[1:]))
"""
"""Holds idle streams until it is killed."""

Arm = Callable[[int], Awaitable[float]]
"""Takes a pair's number, and returns the seconds that count."""


async def paired(count: int, first: Arm, second: Arm, warm_up: int = 0) -> tuple[list[float], list[float]]:
    """Return the seconds of both arms, run alternately in random order."""
    order, seconds = random.Random(0), (list[float](), list[float]())
    for number in range(warm_up + count):
        for which in order.sample((0, 1), 2):
            took = await (first, second)[which](number)
            if number >= warm_up:
                seconds[which].append(took)
    return seconds


async def timed(work: Awaitable[Any]) -> float:
    start = time.perf_counter()
    await work
    return time.perf_counter() - start


@asynccontextmanager
async def served(large: str) -> AsyncIterator[tuple[Running, AsyncClient, httpx.AsyncClient]]:
    """Yield a process with every service, and a client of each interface."""
    with tempfile.TemporaryDirectory() as folder:
        here: dict[str, Any] = {"listen": "127.0.0.1:0", "http_listen": "127.0.0.1:0", "metrics_listen": ""}
        chosen = Settings(data_dir=Path(folder), large=large, video="", segmenter="", check_share=0.0, **here)
        async with (
            running(all_services(), chosen) as process,
            AsyncClient(process.address, api_key="") as client,
            httpx.AsyncClient(base_url=process.http_address, timeout=60.0, trust_env=False) as web,
        ):
            yield process, client, web


async def first_byte(count: int) -> dict[str, float]:
    """Compare the first byte of an exact repeat over HTTP with gRPC's answer, which is one message. Both connections
    stay open; a bare socket keeps the time of an HTTP client out."""
    async with served("noop:") as (process, client, _):
        host, _, port = process.http_address.rpartition("/")[2].partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps(REPEAT)
        head = f"POST /v1/images/generations HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        request = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()

        async def http(_number: int) -> float:
            start = time.perf_counter()
            writer.write(request)
            answer = await reader.readexactly(1)
            took = time.perf_counter() - start
            answer += await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200 "), answer
            lengths = [line for line in answer.lower().splitlines() if line.startswith(b"content-length:")]
            await reader.readexactly(int(lengths[0].partition(b":")[2]))
            return took

        def grpc(_number: int) -> Awaitable[float]:
            steps = REPEAT["num_inference_steps"]
            return timed(client.generate(REPEAT["prompt"], seed=REPEAT["seed"], steps=steps))

        await grpc(0)
        await asyncio.sleep(1.0)
        over_http, over_grpc = await paired(count, http, grpc, warm_up=50)
        writer.close()
    more = [one - other for one, other in zip(over_http, over_grpc, strict=True)]
    return {
        f"{name}_p50_s": quantile(of, 0.5) for name, of in (("http", over_http), ("grpc", over_grpc), ("more", more))
    }


async def partial_images(count: int) -> dict[str, float]:
    """Compare a generation from noise with three partial images and without, both as streams."""
    async with served("bundled:large") as (_, _, web):

        async def generate(number: int, partial: int) -> None:
            body = {"prompt": "a red fox in the snow", "seed": number, "num_inference_steps": STEPS, "cache": "off"}
            body |= {"stream": True, "partial_images": partial}
            answer = await web.post("/v1/images/generations", json=body)
            assert answer.text.count("partial_image_index") == partial, answer.text[:500]

        with_them, without = await paired(
            count, lambda number: timed(generate(number, 3)), lambda number: timed(generate(number, 0)), warm_up=2
        )
    ratios = [one / other for one, other in zip(with_them, without, strict=True)]
    return {
        "with_p50_s": quantile(with_them, 0.5), "without_p50_s": quantile(without, 0.5),
        "more": quantile(ratios, 0.5) - 1,
    }  # fmt: skip


@asynccontextmanager
async def idle_streams(process: Running, web: httpx.AsyncClient, key: str, count: int) -> AsyncIterator[None]:
    """Hold streams of the console in another process, for a key whose tenant has no jobs."""
    answer = await web.post("/console/api/login", json={"key": key})
    cookie = answer.headers["set-cookie"].partition(";")[0]
    web.cookies.clear()
    host, _, port = process.http_address.rpartition("/")[2].partition(":")
    arguments = (sys.executable, "-c", HOLDER, host, port, cookie, str(count))
    holder = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
    assert holder.stdout is not None
    try:
        assert await holder.stdout.readline() == b"open\n"
        yield
        assert holder.returncode is None
    finally:
        holder.kill()
        await holder.wait()


async def streams(count: int, pairs: int, burst: int) -> dict[str, float]:
    """Compare throughput and processor time of bursts of generations with idle streams and without."""
    async with served("noop:") as (process, client, web):
        row, key = issued(principal_of("idle", "viewer", [Role.USER]))
        await process.context.backends.catalog.keys.add(row)
        await asyncio.sleep(2 * EVERY_S)
        bursts: tuple[list[Burst], list[Burst]] = ([], [])
        order, seed = random.Random(0), 0
        for number in range(pairs + 1):
            for which in order.sample((0, 1), 2):
                first, seed = seed, seed + burst
                if which:
                    async with idle_streams(process, web, key, count):
                        await asyncio.sleep(2 * EVERY_S)  # opening them is no part of the burst
                        found = await _burst(client, first, burst)
                else:
                    found = await _burst(client, first, burst)
                if number:  # the first pair warms up
                    bursts[which].append(found)
                await asyncio.sleep(2.0)
        rates = [busy.per_s / free.per_s for free, busy in zip(*bursts, strict=True)]
        processor = [busy.processor_s / free.processor_s for free, busy in zip(*bursts, strict=True)]
        free_per_s, busy_per_s = (quantile([one.per_s for one in way], 0.5) for way in bursts)
        return {
            "without_per_s": free_per_s, "with_per_s": busy_per_s,
            "lost": 1 - quantile(rates, 0.5),
            "lost_p25": 1 - quantile(rates, 0.75), "lost_p75": 1 - quantile(rates, 0.25),
            "more_processor_time": quantile(processor, 0.5) - 1,
            "more_processor_time_p25": quantile(processor, 0.25) - 1,
            "more_processor_time_p75": quantile(processor, 0.75) - 1,
        }  # fmt: skip


class Burst(NamedTuple):
    """Rate and processor time of a burst of generations."""

    per_s: float
    processor_s: float
    """Processor seconds of the server and the clients, which share a process."""


async def _burst(client: AsyncClient, first: int, count: int) -> Burst:
    """Generate with CLIENTS callers."""
    left = iter(range(first, first + count))

    async def one() -> None:
        for seed in left:
            await client.generate(f"a red fox number {seed}", seed=seed, steps=10)

    start, used = time.perf_counter(), time.process_time()
    await asyncio.gather(*(one() for _ in range(CLIENTS)))
    return Burst(count / (time.perf_counter() - start), time.process_time() - used)


async def measure(asked: argparse.Namespace) -> None:
    on = machine()
    repeat = await first_byte(asked.count)
    partial = await partial_images(asked.generations)
    idle = await streams(asked.streams, asked.pairs, asked.burst)
    figures = {
        "first_byte": {**repeat, "goal_s": REPEAT_GOAL_S, "met": repeat["more_p50_s"] <= REPEAT_GOAL_S},
        "partial_images": {**partial, "goal": PARTIAL_GOAL, "met": partial["more"] <= PARTIAL_GOAL},
        "idle_streams": {**idle, "goal": STREAMS_GOAL, "met": idle["lost"] <= STREAMS_GOAL},
    }
    rows = [(name, key, f"{value:.4f}") for name, of in figures.items() for key, value in of.items() if key != "met"]
    print(table(("figure", "", "value"), rows))
    record("http_costs", figures, settings_of(asked) | {"clients": CLIENTS, "steps": STEPS}, on=on, folder=asked.out)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--count", type=int, default=1000, help="pairs of exact repeats")
    parser.add_argument("--generations", type=int, default=40, help="pairs of generations")
    parser.add_argument("--streams", type=int, default=500, help="idle streams")
    parser.add_argument("--pairs", type=int, default=12, help="pairs of bursts")
    parser.add_argument("--burst", type=int, default=200, help="generations of a burst")
    asked = parser.parse_args()
    quiet()
    configure_logging("error")
    run(measure(asked))


if __name__ == "__main__":
    main()
