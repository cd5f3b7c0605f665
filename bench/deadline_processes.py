"""Deadlines met by two real workers on two cores, ours against the paper's baselines (PatchedServe §8.1, Fig. 11).

    python -m bench.deadline_processes            (needs the servers of scripts.stack and 25 minutes of a quiet machine;
                                                   continues after an interruption with the system that it was at)
    python -m bench.deadline_processes --tiny     # few requests of five steps by `small`: does the command work?

Every service is its own process over real servers; each worker has one torch thread. First, with ours, one request of
each size alone gives its deadline (5 times that time), and a closed loop of mixed sizes gives the capacity. Then every
system gets the same Poisson arrivals at each load: the sizes of the model's card equally often, the cache off, dropped
when late. ASSUMPTIONS lists what differs from `bench.virtual_time.deadlines`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, quantile, record, settings_of, table
from bench.serving.baseline_worker import JOIN, ROWS
from bench.serving.processes import scratch, servers_on_path
from bench.traced.traced_systems import FACTS, same_work
from bench.virtual_time.deadlines import FEWER_STEPS
from bench.virtual_time.fleet import SLO
from load.arrivals import poisson
from load.sessions import SHIPPED_SEED, make_trace
from scripts.stack.stack import Stack, missing
from shared.client import AsyncClient
from shared.domain.errors import DeadlineError
from shared.domain.types import Size
from shared.models import ModelCard, find_card
from shared.runtime.progress import Remaining

WORKERS, HELD = 2, 32
"""Workers, and tasks that a worker of one resolution holds: it must see other sizes than that of its batch."""
SLACK: Mapping[str, Any] = {"scheduler": "slack", "lane_order": "urgent", "layout": "auto"}
ASSUMPTIONS = (
    "ours: scheduler=slack, lane_order=urgent, layout=auto, which takes groups on a CPU without a profile of mixes.",
    f"nirvana + orca: {FEWER_STEPS:.0%} of the steps, first come first served, one batch per size in each step.",
    f"first come, per resolution: a batch holds one size. Its worker holds {HELD} tasks and sees no others.",
    "Deadlines and capacity are measured once, with ours, and hold for every system.",
    "The first fifth of the requests at each load fills the queue and does not count.",
)


@dataclass(frozen=True)
class Way:
    """One system under test."""

    name: str
    title: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    join: str = ""
    """How its workers let tasks join (bench/serving/baseline_worker.py); empty: as the settings say."""
    steps: float = 1.0
    """Share of the steps that a request runs."""


WAYS = (
    Way("slack", "slack", SLACK),
    Way("slack_fewer", "slack, fewer steps", SLACK, steps=FEWER_STEPS),
    Way("nirvana_orca", "nirvana + orca", join="first_come", steps=FEWER_STEPS),
    Way("per_resolution", "first come, per resolution", {"max_rows": HELD}, join="resolution"),
    Way("default", "priority, order of arrival"),
)


class WayStack(Stack):
    """A stack whose workers let tasks join as the way says."""

    def __init__(self, folder: Path, way: Way, given: argparse.Namespace) -> None:
        settings = {
            "large": given.model, "torch_threads": 1, "max_rows": given.rows, "log_level": "error",
            "max_queued": 10_000, **way.settings,
        }  # fmt: skip
        replicas = {"gpu_worker": WORKERS, "global_monitor": 0, "segmenter": 0, "text_extractor": 0}
        super().__init__(folder, replicas=replicas, settings=settings)
        self._way, self._rows = way, given.rows

    @property
    def environment(self) -> dict[str, str]:
        return super().environment | {JOIN: self._way.join, ROWS: str(self._rows)}

    def command(self, name: str) -> list[str]:
        if self._way.join and name.startswith("gpu_worker-"):
            return [sys.executable, "-m", "bench.serving.baseline_worker"]
        return super().command(name)


@dataclass(frozen=True)
class Asked:
    """One request of the load."""

    at: float
    """Seconds after the beginning."""
    prompt: str
    size: Size
    number: int


@dataclass(frozen=True)
class Outcome:
    """What became of a request."""

    asked: Asked
    met: bool
    seconds: float
    """From acceptance to the answer."""


def arrivals(card: ModelCard, rate_per_s: float, count: int, seed: int) -> list[Asked]:
    """Return Poisson arrivals, each size of the card equally often."""
    draw, rows = random.Random(seed), make_trace(count, SHIPPED_SEED)
    sizes = card.sizes.sizes or (card.default_size,)
    times = poisson(rate_per_s, count, seed)
    return [Asked(at, row.prompt, draw.choice(sizes), n) for n, (at, row) in enumerate(zip(times, rows, strict=True))]


async def generate(client: AsyncClient, one: Asked, steps: int, deadline_s: float | None = None) -> Outcome:
    """Send one request; an image that is late and one that was dropped are missed."""
    begun = time.monotonic()
    late: dict[str, Any] = {} if deadline_s is None else {"deadline_s": deadline_s, "drop_if_late": True}
    try:
        picture = await client.generate(
            one.prompt, width=one.size.width, height=one.size.height, steps=steps, cache="off", timeout_s=3600.0,
            **late,
        )  # fmt: skip
    except DeadlineError:
        return Outcome(one, False, time.monotonic() - begun)
    return Outcome(one, picture.job.deadline_met is not False, time.monotonic() - begun)


async def alone_s(client: AsyncClient, card: ModelCard, steps: int, times: int) -> dict[str, float]:
    """Return the median seconds of a request of each size on idle workers. The first of each size does not count."""
    found = {}
    for size in card.sizes.sizes or (card.default_size,):
        one = Asked(0.0, "a red fox in the snow", size, 0)
        taken = [(await generate(client, one, steps)).seconds for _ in range(times + 1)]
        found[str(size)] = median(taken[1:])
    return found


async def capacity_per_s(client: AsyncClient, card: ModelCard, steps: int, count: int, users: int) -> float:
    """Return the images per second of a closed loop; the first and the last fifth do not count."""
    waiting, ends = iter(arrivals(card, 1.0, count, seed=0)), list[float]()
    progress = Remaining("capacity", count)

    async def user() -> None:
        for one in waiting:
            await generate(client, one, steps)
            ends.append(time.monotonic())
            progress.advance()

    await asyncio.gather(*(user() for _ in range(users)))
    some = sorted(ends)[count // 5 : count - count // 5]
    return (len(some) - 1) / (some[-1] - some[0])


async def at_load(
    client: AsyncClient, asked: Sequence[Asked], steps: int, deadline_s: Mapping[str, float], title: str
) -> list[Outcome]:
    """Send each request at its time, whatever became of the others."""
    begun, sent, progress = time.monotonic(), list[asyncio.Task[Outcome]](), Remaining(title, len(asked))
    for one in asked:
        await asyncio.sleep(max(begun + one.at - time.monotonic(), 0.0))
        sent.append(asyncio.create_task(generate(client, one, steps, deadline_s[str(one.size)])))
        progress.advance()
    return await asyncio.gather(*sent)


def judged(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the share of deadlines met, without the first fifth; of each size, too."""
    counted = outcomes[len(outcomes) // 5 :]
    sizes = sorted({str(one.asked.size) for one in counted})
    of_size = {size: [one.met for one in counted if str(one.asked.size) == size] for size in sizes}
    return {
        "counted": len(counted),
        "met": sum(one.met for one in counted) / len(counted),
        "met_by_size": {size: sum(met) / len(met) for size, met in of_size.items()},
        "seconds_p50": quantile([one.seconds for one in counted if one.met], 0.5),
    }


async def drive(stack: Stack, way: Way, given: argparse.Namespace, reference: Mapping[str, Any]) -> dict[str, Any]:
    card, steps = find_card(given.model), max(round(way.steps * given.steps), 1)
    deadlines = {size: SLO * seconds for size, seconds in reference["alone_s"].items()}
    levels = {}
    async with AsyncClient(stack.gateways[0], retry_s=120.0) as client:
        await capacity_per_s(client, card, steps, 2 * WORKERS * given.rows, WORKERS * given.rows)  # warm, uncounted
        for load in given.loads:
            asked = arrivals(card, load * reference["capacity_per_s"], given.count, seed=round(1000 * load))
            outcomes = await at_load(client, asked, steps, deadlines, f"{way.title} at load {load:g}")
            levels[f"{load:g}"] = judged(outcomes)
    return {"title": way.title, "levels": levels}


async def referred(stack: Stack, given: argparse.Namespace) -> dict[str, Any]:
    card, busy = find_card(given.model), WORKERS * given.rows
    async with AsyncClient(stack.gateways[0], retry_s=120.0) as client:
        alone = await alone_s(client, card, given.steps, given.alone)
        return {
            "alone_s": alone,
            "capacity_per_s": await capacity_per_s(client, card, given.steps, 5 * busy, busy + WORKERS),
        }


def served(
    way: Way, given: argparse.Namespace, ask: Callable[[Stack], Coroutine[Any, Any, dict[str, Any]]]
) -> dict[str, Any]:
    """Return what is asked of the way's stack."""
    with scratch() as folder, WayStack(folder, way, given) as stack:
        return asyncio.run(ask(stack))


def kept(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of an interrupted run, or make and keep them."""
    if not path.is_file():
        aside = path.with_suffix(".part")
        aside.write_text(json.dumps({**make(), "load_1min_after": round(os.getloadavg()[0], 2)}), encoding="utf-8")
        aside.replace(path)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def report(systems: Mapping[str, Any]) -> str:
    loads = list(next(iter(systems.values()))["levels"])
    rows = [
        [one["title"], *(f"{100 * one['levels'][load]['met']:.1f}" for load in loads),
         *(f"{100 * min(one['levels'][load]['met_by_size'].values()):.1f}" for load in loads)]
        for one in systems.values()
    ]  # fmt: skip
    heads = ["% met at load", *loads, *(f"least of a size, {load}" for load in loads)]
    return f"\n{table(heads, rows)}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--model", default="bundled:large")
    parser.add_argument("--ways", nargs="+", choices=[way.name for way in WAYS], default=[way.name for way in WAYS])
    parser.add_argument("--loads", type=float, nargs="+", default=[0.7, 1.0], help="shares of the capacity")
    parser.add_argument("--rows", type=int, default=8, help="most requests in a step")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--count", type=int, default=200, help="requests at each load, a fifth of them uncounted")
    parser.add_argument("--alone", type=int, default=3, help="requests alone of each size")
    parser.add_argument("--tiny", action="store_true", help="small, T = 5, two rows, 20 requests")
    parser.add_argument(
        "--work", type=Path, default=Path("out/bench/deadline_processes"), help="folder of the systems measured so far"
    )
    given = parser.parse_args(arguments)
    if given.tiny:
        given.model, given.steps, given.rows, given.count, given.alone = "bundled:small", 5, 2, 20, 1
        given.work = given.work.with_name(f"{given.work.name}_tiny")
    servers_on_path()
    if said := missing(os.environ):
        parser.exit(message="deadline_processes: skipped; " + "; ".join(said) + "\n")
    quiet()
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the stack ends with this process
    try:
        run(given)
    finally:
        signal.signal(signal.SIGTERM, before)


def run(given: argparse.Namespace) -> None:
    """Measure the reference and every requested system that is not measured yet, then record all of them."""
    names = ("model", "loads", "rows", "steps", "count", "alone")
    weights = find_card(given.model).weights_hash
    same_work(given.work, {**{name: vars(given)[name] for name in names}, "weights_hash": weights})
    on, chosen, systems = machine(), [way for way in WAYS if way.name in given.ways], {}
    reference = kept(
        given.work / "reference.json", lambda: served(WAYS[0], given, lambda stack: referred(stack, given))
    )
    print(f"capacity {reference['capacity_per_s']:.2f} images a second; alone, s: {reference['alone_s']}", flush=True)
    for way in chosen:
        asks = partial(drive, way=way, given=given, reference=reference)
        systems[way.name] = kept(given.work / f"{way.name}.json", partial(served, way, given, asks))
        print(report({way.name: systems[way.name]}), flush=True)
    print(report(systems))
    figures = {"reference": reference, "systems": systems}
    name = "deadline_processes" + ("_tiny" if given.tiny else "")
    record(name, figures, {**settings_of(given), "assumptions": ASSUMPTIONS}, on=on, folder=given.out)
    for path in _kept_files(given.work):  # the next run must measure again, with its own code
        path.unlink()


def _kept_files(work: Path) -> Iterator[Path]:
    names = ("reference.json", *(f"{way.name}.json" for way in WAYS), FACTS)
    yield from (work / name for name in names if (work / name).is_file())


if __name__ == "__main__":
    main()
