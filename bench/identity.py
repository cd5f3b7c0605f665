"""What the check of an API key costs a call: the same gateway behind two ports, one with the door and one without.

    python -m bench.identity --count 2000

One client alternates between the ports, in random order, so drift of the machine meets both alike. Each pair is one
exact repeat (the cheapest image) or one ListJobs. The figure is the median of the differences of pairs.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, quantile, record, table
from services.cli.embedded import all_services
from shared.client import AsyncClient
from shared.domain.identity import Role, issued, principal_of
from shared.runtime import rpc, rpc_server
from shared.runtime.loop import run
from shared.runtime.settings import Settings
from shared.runtime.telemetry import configure_logging
from shared.service import running
from shared.service.door import EVERY_S

GOAL_S, WARM_UP, KEYS = 0.0003, 50, 1000
"""Most seconds that the check may add to the median; pairs before the measured ones; keys in the catalog."""

Call = Callable[[AsyncClient], Awaitable[Any]]


async def measure(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        chosen = Settings(
            data_dir=Path(folder), listen="127.0.0.1:0", metrics_listen="", large="noop:", check_share=0.0
        )
        async with running(all_services(), chosen) as process:
            keys = [issued(principal_of("default", f"user-{number}", [Role.USER])) for number in range(KEYS)]
            for key, _ in keys:
                await process.context.backends.catalog.keys.add(key)
            await asyncio.sleep(2 * EVERY_S)
            options = [*rpc.channel_options(chosen.max_message_bytes), *rpc_server.server_options()]
            bare = rpc_server.server(options)
            process.services[0].register(bare)
            address = f"127.0.0.1:{bare.add_insecure_port('127.0.0.1:0')}"
            await bare.start()
            async with (
                AsyncClient(address, api_key="") as without,
                AsyncClient(process.address, api_key=keys[0][1]) as with_key,
            ):
                figures: dict[str, Any] = await _figures(with_key, without, arguments.count)
            await bare.stop(None)
    print(table(("call", "without, p50 ms", "with a key", "difference of pairs, p50"), _rows(figures)))
    figures |= {"goal_ms": 1000 * GOAL_S, "met": _met(figures)}
    record("identity", figures, {"count": arguments.count, "keys": KEYS}, folder=arguments.out)


async def _figures(with_key: AsyncClient, without: AsyncClient, count: int) -> dict[str, dict[str, float]]:
    def repeat(client: AsyncClient) -> Awaitable[Any]:
        return client.generate("a red fox in the snow", seed=7, steps=10)

    calls: dict[str, Call] = {"exact repeat": repeat, "ListJobs": lambda client: client.list_jobs(page_size=1)}
    await repeat(with_key)
    await repeat(without)
    await asyncio.sleep(1.0)
    return {name: await _paired(call, with_key, without, count) for name, call in calls.items()}


async def _paired(call: Call, with_key: AsyncClient, without: AsyncClient, count: int) -> dict[str, float]:
    order, seconds = random.Random(0), {True: list[float](), False: list[float]()}
    for number in range(WARM_UP + count):
        for keyed in order.sample((True, False), 2):
            start = time.perf_counter()
            await call(with_key if keyed else without)
            if number >= WARM_UP:
                seconds[keyed].append(time.perf_counter() - start)
    differences = [one - other for one, other in zip(seconds[True], seconds[False], strict=True)]
    values = {"without": seconds[False], "with_key": seconds[True], "difference": differences}
    return {f"{name}_p50_ms": round(1000 * quantile(of, 0.5), 4) for name, of in values.items()}


def _rows(figures: dict[str, dict[str, float]]) -> list[tuple[object, ...]]:
    return [(name, *(f"{value:.3f}" for value in of.values())) for name, of in figures.items()]


def _met(figures: dict[str, dict[str, float]]) -> bool:
    return all(of["difference_p50_ms"] <= 1000 * GOAL_S for of in figures.values())


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--count", type=int, default=2000, help="pairs of each call")
    arguments = parser.parse_args(given)
    quiet()
    configure_logging("error")
    run(measure(arguments))


if __name__ == "__main__":
    main()
