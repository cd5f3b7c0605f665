"""One tenant floods: how much longer another tenant, which sends as on a quiet day, waits for its images.

    python -m bench.fairness                      (one process, 6 minutes)

A closed loop of one tenant finds the capacity. Its requests have 25 to 75 steps, because hits and several T make runs
of several lengths; `--flood-steps 50 50` makes all rows begin and end together, the worst case. Then a quiet tenant
sends Poisson arrivals of a share of the capacity, each round once alone and once beside a flood of a multiple of the
capacity. Refused calls of the flood do not return; those of the quiet tenant do, after the delay that the gateway
names, and their waits count. The denoiser waits a known time a step and needs no processor, and the cache is off.
Server and clients are two processes on the same cores.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, quantile, record, table
from bench.overload import embedded
from bench.serving.processes import issue_key, scratch
from load.arrivals import poisson
from shared.client import AsyncClient, Waiting
from shared.domain.errors import AfterimageError
from shared.domain.types import CacheMode
from shared.runtime.loop import run

GOAL = 2.0
"""Largest accepted ratio of the quiet tenant's p99, beside the flood and alone."""
FLOOD, QUIET = "flooder", "quiet"


class Sender:
    """The calls of one tenant: seconds of each image, and the errors by name."""

    def __init__(self, client: AsyncClient, steps: Sequence[int]) -> None:
        """steps: least and most of a request."""
        self._client, self._steps, self._draw = client, steps, random.Random(1)
        self.seconds: list[float] = []
        self.errors, self.waits = Counter[str](), Counter[str]()

    async def once(self) -> None:
        begun = time.monotonic()
        try:
            await self._client.generate(
                "a red fox in the snow", width=64, height=64, steps=self._draw.randint(*self._steps),
                cache=CacheMode.OFF, on_wait=self._waited,
            )  # fmt: skip
            self.seconds.append(time.monotonic() - begun)
        except AfterimageError as error:
            self.errors[type(error).__name__] += 1

    async def closed(self, users: int, seconds: float) -> float:
        """Return the images a second of users who send again at once."""
        end = time.monotonic() + seconds

        async def user() -> None:
            while time.monotonic() < end:
                await self.once()

        await asyncio.gather(*(user() for _ in range(users)))
        return len(self.seconds) / seconds

    async def open(self, rate_per_s: float, seconds: float, seed: int) -> None:
        """Send Poisson arrivals, whatever comes back, and wait for the last answer."""
        begun, sent = time.monotonic(), []
        for at in poisson(rate_per_s, int(2 * rate_per_s * seconds) + 50, seed):
            if at > seconds:
                break
            await asyncio.sleep(begun + at - time.monotonic())
            sent.append(asyncio.create_task(self.once()))
        await asyncio.gather(*sent)

    def figures(self) -> dict[str, Any]:
        found = {f"p{round(100 * share)}_s": quantile(self.seconds, share) for share in (0.5, 0.99)}
        return {**found, "images": len(self.seconds), "errors": dict(self.errors), "waits": dict(self.waits)}

    def _waited(self, waiting: Waiting) -> None:
        self.waits[type(waiting.error).__name__] += 1


async def rounds_of(address: str, made: dict[str, str], options: argparse.Namespace) -> list[dict[str, Any]]:
    rounds = []
    async with (
        AsyncClient(address, api_key=made[FLOOD], retry_s=0.0) as flooder,
        AsyncClient(address, api_key=made[QUIET], retry_s=60.0) as other,
    ):
        capacity = await Sender(flooder, options.flood_steps).closed(2 * options.max_rows, options.warm_s + 5.0)
        for number in range(options.rounds):
            alone, beside = (Sender(other, (options.steps, options.steps)) for _ in range(2))
            flood = Sender(flooder, options.flood_steps)
            rate = options.quiet_share * capacity
            await alone.open(rate, options.window_s, options.seed + number)
            flooding = asyncio.create_task(
                flood.open(options.multiple * capacity, options.warm_s + options.window_s, options.seed - 1)
            )
            await asyncio.sleep(options.warm_s)
            await beside.open(rate, options.window_s, options.seed + number)
            await flooding
            of = {"quiet": alone.figures(), "flooded": beside.figures(), "flood": flood.figures()}
            ratios = {f"ratio_{p}": of["flooded"][f"{p}_s"] / of["quiet"][f"{p}_s"] for p in ("p50", "p99")}
            found: dict[str, Any] = {"capacity_per_s": capacity, **of, **ratios}
            print(f"round {number + 1}: p99 × {found['ratio_p99']:.2f}, p50 × {found['ratio_p50']:.2f}", flush=True)
            rounds.append(found)
    return rounds


def report(rounds: Sequence[dict[str, Any]]) -> str:
    rows = [
        [number, name, *(one[name][key] for key in ("images", "p50_s", "p99_s", "waits", "errors"))]
        for number, one in enumerate(rounds, 1)
        for name in ("quiet", "flooded", "flood")
    ]
    return table(["round", "who", "images", "p50 s", "p99 s", "waits", "errors"], rows)


def measure(options: argparse.Namespace) -> None:
    on = machine()
    large = f"noop:?step_ms={options.step_ms:g}&row_ms={options.row_ms:g}"
    settings: dict[str, Any] = {"large": large, "max_rows": options.max_rows, "max_queued": options.max_queued}
    settings |= {"log_level": "error", "check_share": 0.0}
    with scratch() as folder, embedded(settings, folder) as target:
        keys = {tenant: issue_key(folder, tenant, tenant) for tenant in (FLOOD, QUIET)}
        rounds = run(rounds_of(target.host, keys, options))
    worst = max(one["ratio_p99"] for one in rounds)
    print(report(rounds))
    print(f"capacity {rounds[0]['capacity_per_s']:.1f} images a second; worst p99 × {worst:.2f}, goal {GOAL:g}")
    figures = {"rounds": rounds, "worst_ratio_p99": worst, "goal": GOAL, "met": worst <= GOAL}
    kept = {key: str(value) for key, value in vars(options).items() if key != "out"} | {"large": large}
    record("fairness", figures, kept, on={**on, "load_1min_after": round(os.getloadavg()[0], 2)}, folder=options.out)


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--multiple", type=float, default=10.0, help="load of the flood, in capacities")
    parser.add_argument("--quiet-share", type=float, default=0.2, help="load of the quiet tenant, in capacities")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--warm-s", type=float, default=8.0, help="seconds of the flood before the measured ones")
    parser.add_argument("--window-s", type=float, default=60.0, help="measured seconds")
    parser.add_argument("--step-ms", type=float, default=30.0, help="milliseconds per step of the waiting denoiser")
    parser.add_argument("--row-ms", type=float, default=0.0, help="milliseconds more per row of a step")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument(
        "--flood-steps", type=int, nargs=2, default=[25, 75], help="least and most of the flood's steps"
    )
    parser.add_argument("--max-rows", type=int, default=8)
    parser.add_argument("--max-queued", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1, help="seed of the arrivals")
    options = parser.parse_args(given)
    quiet()
    measure(options)


if __name__ == "__main__":
    main()
