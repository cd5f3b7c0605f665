"""Overhead of a hit in the cluster mode against the floors of its path, and the sustained rate of requests.

    python -m bench.cluster_overhead              (3 minutes)

A private stack runs PostgreSQL, RabbitMQ, an S3 server and Weaviate, and each service in its own process. Each round
measures the path's own calls one at a time (bench/serving/path_floors.py), then requests of the session trace at 10 a
second (Poisson, T = 50, 64×64). The denoiser waits 1 ms a step. Both alternate, so other load on the machine affects
both equally. Overhead is the client's wait minus the steps, the prompt's encoding, the decoding and the encoder's
forward pass. Each of these parts is timed in the process that runs it. At the end more clients than the stack has rows
send requests without a pause: that gives the rate that two cores sustain, and each process's share of the processor
time.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, quantile, record, table
from bench.serving.cluster_under_test import PARTS, ClusterUnderTest, Sample, histogram_mean
from bench.serving.path_floors import CALLS, Floors
from bench.serving.processes import Counted, cpu_of, scratch, servers_on_path, spent
from load.sessions import MAIN_SIZE
from scripts.stack.stack import PORTS, Stack, missing, variable
from shared.client import AsyncClient
from shared.domain.types import PlanSource
from shared.runtime.loop import run as run_on_loop
from shared.runtime.settings import Settings
from shared.service.backends import open_backends

GOAL_P50, GOAL_P99 = 1.5, 6.0
"""Goals for the overhead of a hit, as multiples of the sum of its path's floors."""
CALLED = ("embedder", "match_predictor", "retriever")


def summary(samples: Sequence[Sample], floors_ms: float) -> dict[str, Any]:
    """Return quantiles of the overhead in milliseconds and in floors, and quantiles of every part."""
    overheads = [one.overhead_s * 1000 for one in samples]
    return {
        "requests": len(samples),
        **{f"p{share}_ms": quantile(overheads, share / 100) for share in (10, 50, 90, 99)},
        "p50_floors": quantile(overheads, 0.5) / floors_ms,
        "p99_floors": quantile(overheads, 0.99) / floors_ms,
        "total_p50_ms": quantile([one.total_s * 1000 for one in samples], 0.5),
        "parts_p50_ms": {name: quantile([one.parts[name] * 1000 for one in samples], 0.5) for name, _ in PARTS},
        "parts_p99_ms": {name: quantile([one.parts[name] * 1000 for one in samples], 0.99) for name, _ in PARTS},
    }


async def figures(bench: ClusterUnderTest, options: argparse.Namespace) -> dict[str, Any]:
    await bench.closed_loop(4, count=options.warm)
    await asyncio.sleep(1.0)
    stack = bench.stack
    floors = Floors(bench.backends, [stack.address(f"{name}-1") for name in CALLED], await bench.hit())
    await floors.measure(5)
    floors.taken.clear()  # discard the first calls, which opened connections and prepared statements
    samples: list[Sample] = []
    handlers: list[dict[str, float]] = []
    paced_s = 0.0
    paced: dict[str, float] = {}
    for number in range(options.rounds):
        await floors.measure(options.floors)
        pages, cpu, begun = bench.pages(), cpu_of(stack), time.monotonic()
        samples += await bench.at_rate(options.count // options.rounds, options.rate, options.seed + number)
        paced_s += time.monotonic() - begun
        for name, used in spent(cpu, cpu_of(stack)).items():
            paced[name] = paced.get(name, 0.0) + used
        handlers.append(_handlers(pages, bench.pages()))
        print(
            f"round {number + 1} of {options.rounds}: {len(samples)} answered, load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    floors_ms = floors.sum_ms()
    hits = [one for one in samples if one.source is PlanSource.LATENT]
    found: dict[str, Any] = {
        "floors": floors.figures(),
        "floors_sum_ms": floors_ms,
        "chain_ms": floors.chain_ms(),
        "path": [{"call": one.name, "kind": one.kind, "times": one.times, "why": one.why} for one in CALLS],
        "hits": summary(hits, floors_ms),
        "misses": summary([one for one in samples if one.source is PlanSource.NOISE], floors_ms),
        "goals": {"p50_floors": GOAL_P50, "p99_floors": GOAL_P99},
        "handlers_ms": {name: fmean(one[name] for one in handlers) for name in handlers[0]},
        "cpu_ms_per_request": {name: used * 1000 / len(samples) for name, used in paced.items()},
        "cores_at_rate": sum(paced.values()) / paced_s,
        "sustained": await sustained(bench, options),
        "failed": bench.failed,
    }
    found["met"] = {
        "p50": found["hits"]["p50_floors"] <= GOAL_P50,
        "p99": found["hits"]["p99_floors"] <= GOAL_P99,
    }
    return found


def _handlers(before: dict[str, Counted], after: dict[str, Counted]) -> dict[str, float]:
    """Return the mean milliseconds inside the path's gRPC handlers, without the calls around them."""
    methods = (("embedder-1", "EmbedText"), ("match_predictor-1", "Predict"), ("retriever-1", "Plan"))
    return {
        method: histogram_mean(before[name], after[name], "afterimage_rpc_seconds", method=method) * 1000
        for name, method in methods
    }


async def sustained(bench: ClusterUnderTest, options: argparse.Namespace) -> dict[str, Any]:
    """Return the requests per second of a closed loop, and each process's seconds per request."""
    await bench.closed_loop(options.clients, seconds=2.0)
    cpu, own, begun = cpu_of(bench.stack), _own_s(), time.monotonic()
    answers = await bench.closed_loop(options.clients, seconds=options.sustained_s)
    seconds = time.monotonic() - begun
    used = {**spent(cpu, cpu_of(bench.stack)), "client": _own_s() - own}
    return {
        "per_s": len(answers) / seconds,
        "requests": len(answers),
        "clients": options.clients,
        "hit_share": fmean(picture.plan.source is PlanSource.LATENT for picture, _ in answers),
        "p50_ms": quantile([taken * 1000 for _, taken in answers], 0.5),
        "p99_ms": quantile([taken * 1000 for _, taken in answers], 0.99),
        "cores": sum(used.values()) / seconds,
        "cpu_ms_per_request": {name: each * 1000 / len(answers) for name, each in used.items()},
    }


def _own_s() -> float:
    """Return the processor seconds of this process without its children, which are the stack's servers."""
    times = os.times()
    return times.user + times.system


def report(found: dict[str, Any]) -> str:
    floors, hits, misses = found["floors"], found["hits"], found["misses"]
    path = table(
        ["what a hit waits for", "times", "p50 ms, alone", "p99", "why"],
        [[one["call"], one["times"], floors[one["call"]]["p50_ms"], floors[one["call"]]["p99_ms"], one["why"]]
         for one in found["path"]],
    )  # fmt: skip
    kinds = ("hits", hits), ("misses", misses)
    overhead = table(
        ["overhead, ms", "requests", "p10", "p50", "p90", "p99", "p50 in floors", "p99 in floors", "whole request p50"],
        [[name, *(one[key] for key in ("requests", "p10_ms", "p50_ms", "p90_ms", "p99_ms", "p50_floors", "p99_floors",
                                       "total_p50_ms"))] for name, one in kinds],
    )  # fmt: skip
    parts = table(
        ["where a hit's time goes", "p50 ms", "p99 ms"],
        [[text, hits["parts_p50_ms"][name], hits["parts_p99_ms"][name]] for name, text in PARTS],
    )
    rate = found["sustained"]
    cpu = table(
        ["processor ms a request", "at the paced rate", "sustained"],
        [[name, found["cpu_ms_per_request"].get(name, float("nan")), used]
         for name, used in sorted(rate["cpu_ms_per_request"].items(), key=lambda pair: -pair[1])],
    )  # fmt: skip
    met = {name: "met" if good else "missed" for name, good in found["met"].items()}
    return (
        f"\n{path}\n\nsum of commits, confirms, blobs and index: {found['floors_sum_ms']:.1f} ms"
        f" (all that is waited for, with the row read and four bare rpcs, where two run side by side the longer one: "
        f"{found['chain_ms']:.1f})\n\n{overhead}\n\n"
        f"goals: p50 {GOAL_P50} floors {met['p50']}, p99 {GOAL_P99} floors {met['p99']}; failed: {found['failed']}\n\n"
        f"{parts}\n\nmean ms inside handlers: "
        + ", ".join(f"{name} {value:.2f}" for name, value in found["handlers_ms"].items())
        + f"\n\nsustained: {rate['per_s']:.1f} requests a second with {rate['clients']} clients "
        f"(p50 / p99 {rate['p50_ms']:.0f} / {rate['p99_ms']:.0f} ms, hits {rate['hit_share']:.0%}, "
        f"{rate['cores']:.2f} cores)\n\n{cpu}"
    )


async def measure(stack: Stack, options: argparse.Namespace) -> dict[str, Any]:
    urls: Any = {port.setting: stack.environment[variable(port.setting)] for port in PORTS}
    backends = await open_backends(Settings(**urls))
    try:
        async with AsyncClient(stack.gateways[0]) as client:
            return await figures(ClusterUnderTest(stack, client, backends, options), options)
    finally:
        await backends.close()


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--count", type=int, default=800, help="requests at the paced rate")
    parser.add_argument("--rate", type=float, default=10.0, help="requests a second")
    parser.add_argument("--rounds", type=int, default=8, help="rounds of floors and requests")
    parser.add_argument("--floors", type=int, default=40, help="calls of each kind in a round")
    parser.add_argument("--warm", type=int, default=150, help="warm-up requests, not measured")
    parser.add_argument("--step-ms", type=float, default=1.0, help="milliseconds per step of the no-op denoiser")
    parser.add_argument("--clients", type=int, default=16, help="clients of the closed loop")
    parser.add_argument("--sustained-s", type=float, default=30.0, help="seconds of the closed loop")
    parser.add_argument("--seed", type=int, default=1, help="seed of the arrivals")
    options = parser.parse_args(given)
    servers_on_path()
    if said := missing(os.environ):
        parser.exit(message="cluster_overhead: skipped; " + "; ".join(said) + "\n")
    quiet()
    on = machine()
    settings = {"large": f"noop:?step_ms={options.step_ms:g}", "log_level": "error"}
    with scratch() as folder, Stack(folder, settings=settings) as stack:
        found = run_on_loop(measure(stack, options))
    print(report(found))
    kept = {key: str(value) for key, value in vars(options).items() if key != "out"} | settings
    after = {"load_1min_after": round(os.getloadavg()[0], 2)}
    print(f"\nload {on['load_1min']} before, {after['load_1min_after']} after")
    record("cluster_overhead", found, {**kept, "T": 50, "size": MAIN_SIZE}, on={**on, **after}, folder=options.out)


if __name__ == "__main__":
    main()
