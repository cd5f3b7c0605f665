"""Latency of storing and fetching one blob on every installed store: a state of 2 or 20 KB, an image of 150 KB.

    python -m bench.blobs_latency --count 500

Blobs go through the adapters one after the other, and each fetch verifies the hash. The servers are private and local.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.measuring.recording import command_line, machine, quantile, record, table
from scripts.stack import minio, seaweedfs
from scripts.stack.servers import Server
from shared.blobs import Blobs, open_blobs

SIZES = (2_000, 20_000, 150_000)
WARM_UP = 20


async def one_store(blobs: Blobs, size: int, count: int) -> dict[str, float]:
    """Return quantiles in milliseconds; states are stored with `durable=False`, images durably."""
    durable = size > 100_000
    put, get = [], []
    for number in range(-WARM_UP, count):
        data, key = os.urandom(size), f"bench/{size}/{max(number, 0)}"
        start = time.monotonic()
        sha256 = await blobs.put(key, data, durable=durable)
        stored = time.monotonic()
        await blobs.get(key, sha256)
        if number >= 0:
            put.append((stored - start) * 1000)
            get.append((time.monotonic() - stored) * 1000)
    await blobs.delete([f"bench/{size}/{number}" for number in range(count)])
    return {
        "put_p50_ms": quantile(put, 0.5),
        "put_p99_ms": quantile(put, 0.99),
        "get_p50_ms": quantile(get, 0.5),
        "get_p99_ms": quantile(get, 0.99),
    }


async def measure(arguments: argparse.Namespace) -> None:
    on = machine()
    folder = Path(tempfile.mkdtemp(prefix="afterimage-bench-"))
    servers: list[Server] = []
    found: dict[str, Any] = {}
    try:
        urls = {"filesystem": f"file:{folder / 'files'}"}
        for program in (seaweedfs, minio):
            if program.find() is not None:
                servers.append(program.start(folder / program.__name__))
                urls[servers[-1].name] = servers[-1].url
        for name, url in urls.items():
            blobs = await open_blobs(url)
            found[name] = {str(size): await one_store(blobs, size, arguments.count) for size in SIZES}
            await blobs.close()
    finally:
        for server in servers:
            server.kill()  # its data goes too, and SeaweedFS takes 15 s to stop
        shutil.rmtree(folder, ignore_errors=True)
    print(report(found))
    record("blobs_latency", found, {"count": arguments.count, "sizes": SIZES}, on=on, folder=arguments.out)


def report(found: dict[str, Any]) -> str:
    rows = [
        [f"{name}, {int(size) // 1000} KB", *taken.values()]
        for name, sizes in found.items()
        for size, taken in sizes.items()
    ]
    return table(["one blob, ms", "put p50", "put p99", "get p50", "get p99"], rows)


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--count", type=int, default=500, help="blobs of each size")
    asyncio.run(measure(parser.parse_args(given)))


if __name__ == "__main__":
    main()
