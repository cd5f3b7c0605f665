"""Throughput of the bundled pair with real processes under saturating load (MoDM Fig. 7), two workers on two cores.

    python -m bench.two_processes                 (needs the servers of scripts.stack and half an hour of a quiet
                                                   machine; continues after an interruption with the same system, and
                                                   begins anew once all systems are recorded)

Every service is its own process over real servers; each worker has one torch thread. The protocol is the paper's (§6).
The large model generates the trace's first requests into the cache, uncounted. Then `--users` users request the rest,
each sending the next request at once. Only the middle of the run is measured, when all users are busy and the monitor
has settled:

- one large worker and one small, as the monitor assigns them in throughput mode;
- both models in each of two workers, time-shared and without a monitor: each worker generates misses with the large
  model and hits with the small one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.measuring.plotting import pyplot_or_none
from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, quantile, record, settings_of, share, table
from bench.serving.processes import counted, cpu_of, grown, scratch, servers_on_path, spent
from bench.traced.traced_systems import FACTS, main_size, same_work
from bench.virtual_time.energy import open_meter
from bench.virtual_time.two_models import FEWER_STEPS, GOAL_SHARE, Bound
from bench.virtual_time.virtual_systems import LARGE, SMALL, bundled_speeds
from load.sessions import SHIPPED_SEED, Prompt, make_trace
from scripts.stack.stack import Stack, missing
from shared.client import AsyncClient, Picture
from shared.domain.types import PlanSource
from shared.models.card_lookup import served_cards
from shared.runtime.progress import Remaining
from shared.runtime.settings import Settings

WORKERS, ROWS = 2, 8
PAIR = {"large": "bundled:large", "small": "bundled:small"}
EMBEDDED_WITHIN_S = 300.0
EMBEDDED = "afterimage_pictures_embedded_total"
ASSUMPTIONS = (
    "Seeds are the server's, so a repeated prompt is generated again. All at 64×64.",
    "h, s and the model of each image, for the bounds, come from the answers of the same run; r is the latency "
    "profile's, at the batch that the users fill.",
    "Joules are the machine's own (bench/virtual_time/energy.py), all servers and services included, from the end of "
    "the warm-up to the last answer; without a meter there are none.",
    "Retrieval only is no mode of the service; bench.virtual_time.two_models has it in virtual time.",
)


@dataclass(frozen=True)
class Way:
    """One system under test."""

    name: str
    title: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)
    """Fields that every request sets."""
    monitored: bool = True
    cached: bool = False


WAYS = (
    Way("vanilla", "vanilla large", {"large": "bundled:large"}, {"cache": "off"}),
    Way("small", "small alone", {"large": "bundled:small"}, {"cache": "off"}),
    Way("fewer_steps", f"large with {FEWER_STEPS} steps", {"large": "bundled:large"},
        {"cache": "off", "steps": FEWER_STEPS}),
    Way("nirvana", "latents (ours)", {"large": "bundled:large", "image_tier": "off"}, cached=True),
    Way("modm", "MoDM, one large and one small worker", {**PAIR, "monitor_mode": "throughput"}, cached=True),
    Way("modm_shared", "MoDM, both models in each of two workers", {**PAIR, "monitor_mode": "throughput"},
        monitored=False, cached=True),
)  # fmt: skip


@dataclass(frozen=True)
class Answer:
    at: float
    """Time of the answer on the monotonic clock, seconds."""
    seconds: float
    source: str
    model: str
    start_step: int
    steps: int


def answer_of(picture: Picture, asked_at: float, at: float) -> Answer:
    plan = picture.plan
    return Answer(
        at, at - asked_at, str(plan.source), picture.model, plan.start_step, plan.run_steps(picture.job.request.steps)
    )


async def ask_all(
    client: AsyncClient, rows: Sequence[Prompt], users: int, fields: Mapping[str, Any], title: str
) -> list[Answer]:
    """Send every row once in order, `users` at a time."""
    found: list[Answer] = []
    waiting, progress = iter(rows), Remaining(title, len(rows))

    async def user() -> None:
        for row in waiting:
            asked_at = time.monotonic()
            given: dict[str, Any] = {"steps": row.steps, "user": str(row.user), "width": row.width}
            given |= {"height": row.height, "variation": "same", **fields}
            picture = await client.generate(row.prompt, timeout_s=3600.0, **given)
            found.append(answer_of(picture, asked_at, time.monotonic()))
            progress.advance()

    await asyncio.gather(*(user() for _ in range(users)))
    return found


async def embedded(stack: Stack, pictures: int) -> None:
    """Wait until the index holds the embeddings of `pictures` images."""
    async with asyncio.timeout(EMBEDDED_WITHIN_S):
        while grown({}, counted(stack, "cache_maintainer-1"), EMBEDDED) < pictures:  # noqa: ASYNC110  # a metrics page offers no event to wait for
            await asyncio.sleep(0.5)


def middle(answers: Sequence[Answer], settle: float, end: float = 0.05) -> list[Answer]:
    """Return the answers that ended while all users were busy: without the first share `settle`, in which the monitor
    settles, and without the last share `end`."""
    ordered = sorted(answers, key=lambda one: one.at)
    return ordered[int(settle * len(ordered)) : len(ordered) - max(int(end * len(ordered)), 1)]


def figures_of(way: Way, answers: Sequence[Answer], settle: float, cores: Mapping[str, float]) -> dict[str, Any]:
    some = middle(answers, settle)
    hits = [one for one in some if one.source != PlanSource.NOISE]
    seconds = some[-1].at - some[0].at
    return {
        "title": way.title,
        "counted": len(some),
        "per_s": (len(some) - 1) / seconds if seconds > 0 else float("nan"),
        "hit_rate": len(hits) / len(some),
        "share_skipped": fmean(one.start_step / one.steps for one in hits) if hits else 0.0,
        "k_histogram": {str(k): n for k, n in sorted(Counter(one.start_step for one in some).items())},
        "by_model": dict(Counter(one.model for one in some)),
        "by_source": dict(Counter(one.source for one in some)),
        "seconds_p50": quantile([one.seconds for one in some], 0.5),
        "seconds_p99": quantile([one.seconds for one in some], 0.99),
        "cores": dict(cores),
    }


async def drive(stack: Stack, way: Way, given: argparse.Namespace, rows: Sequence[Prompt]) -> dict[str, Any]:
    async with AsyncClient(stack.gateways[0], retry_s=120.0) as client:
        if way.cached:
            warm = rows[: given.warm]
            await ask_all(client, warm, given.users, {"cache": "write", "quality": "large"}, f"{way.title}, warm-up")
            if "small" in way.settings:
                await embedded(stack, len(warm))
        meter = open_meter()
        readings = meter.readings() if meter else ()
        begun, before = time.monotonic(), cpu_of(stack)
        answers = await ask_all(client, rows[given.warm :], given.users, way.asked, way.title)
        used, seconds = spent(before, cpu_of(stack)), time.monotonic() - begun
        joules = meter.since(readings) / len(answers) if meter else None
    figures = figures_of(way, answers, given.settle, {name: one / seconds for name, one in used.items()})
    return {**figures, "joules_per_request": joules, "meter": meter.source if meter else "none"}


def with_bounds(systems: dict[str, Any], users: int) -> dict[str, Any]:
    """Add speedups, and for MoDM the bound from its own hits: one of two workers stays large, or both run both
    models."""
    speeds, rows = bundled_speeds(), min(ROWS, max(users // WORKERS, 1))
    ratio = speeds[SMALL].share_s(rows) / speeds[LARGE].share_s(rows)
    for name, one in systems.items():
        if "vanilla" in systems:
            one["speedup"] = one["per_s"] / systems["vanilla"]["per_s"]
            joules, whole = one.get("joules_per_request"), systems["vanilla"].get("joules_per_request")
            one["energy_saved"] = 1 - joules / whole if joules and whole else None
        if name.startswith("modm") and "speedup" in one:
            bound = Bound(one["hit_rate"], one["share_skipped"], ratio)
            one["bound"] = bound.whole(WORKERS) if name == "modm" else bound.fractional
            one["of_bound"] = one["speedup"] / one["bound"]
            one["reaches_the_goal"] = one["of_bound"] >= GOAL_SHARE
    return {"systems": systems, "cost_ratio": ratio}


def report(figures: Mapping[str, Any]) -> str:
    rows = [
        [one["title"], one["counted"], one["per_s"], f"{one.get('speedup', float('nan')):.2f}",
         f"{one['bound']:.2f}" if "bound" in one else "", f"{one['of_bound']:.0%}" if "of_bound" in one else "",
         f"{one['hit_rate']:.1%}", f"{one['share_skipped']:.3f}",
         ", ".join(f"{n} {model}" for model, n in one["by_model"].items()), one["seconds_p50"], one["seconds_p99"],
         one.get("joules_per_request") or "no meter", share(one.get("energy_saved"))]
        for one in figures["systems"].values()
    ]  # fmt: skip
    heads = ["system", "counted", "images /s", "× vanilla", "bound", "of it", "hits", "skipped of a hit",
             "generated by", "p50 s", "p99 s", "J a request", "energy saved"]  # fmt: skip
    return f"\n{table(heads, rows)}"


def plot(figures: Mapping[str, Any], path: Path) -> None:
    pyplot = pyplot_or_none()
    systems = figures["systems"]
    if pyplot is None or not all("speedup" in one for one in systems.values()):
        return
    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    axes.bar(range(len(systems)), [one["speedup"] for one in systems.values()])
    for place, one in enumerate(systems.values()):
        if "bound" in one:
            axes.hlines(one["bound"], place - 0.4, place + 0.4, color="black", linestyle=":")
    axes.set_xticks(
        range(len(systems)), [one["title"].replace(", ", ",\n") for one in systems.values()], fontsize=7
    )  # fmt: skip
    axes.set_ylabel("throughput, vanilla = 1 (dotted: bounds)")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--ways", nargs="+", choices=[way.name for way in WAYS], default=[way.name for way in WAYS])
    parser.add_argument(
        "--warm", type=int, default=200, help="first requests, generated by the large model and not counted"
    )
    parser.add_argument("--count", type=int, default=800, help="counted requests")
    parser.add_argument("--users", type=int, default=32, help="requests in flight")
    parser.add_argument("--settle", type=float, default=0.3, help="share of the requests before anything is counted")
    parser.add_argument("--period-s", type=float, default=15.0, help="period of the monitor")
    parser.add_argument(
        "--work", type=Path, default=Path("out/bench/two_processes"), help="folder of the systems measured so far"
    )
    given = parser.parse_args(arguments)
    servers_on_path()
    if said := missing(os.environ):
        parser.exit(message="two_processes: skipped; " + "; ".join(said) + "\n")
    quiet()
    before = signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # exit as on Ctrl-C, so that the stack ends with this process
    try:
        run(given)
    finally:
        signal.signal(signal.SIGTERM, before)


def run(given: argparse.Namespace) -> None:
    """Measure every requested system that is not measured yet, then record all of them."""
    same_work(given.work, facts(given))
    on, chosen = machine(), [way for way in WAYS if way.name in given.ways]
    systems = {}
    for number, way in enumerate(chosen, 1):
        print(f"{number} of {len(chosen)}: {way.title}", flush=True)
        systems[way.name] = measured(way, given)
    figures = with_bounds(systems, given.users)
    print(report(figures))
    after = {"load_1min_after": round(os.getloadavg()[0], 2)}
    settings = {**settings_of(given), "rows": ROWS, "assumptions": ASSUMPTIONS}
    record("two_processes", figures, settings, on={**on, **after}, folder=given.out)
    plot(figures, given.out / "two_processes.png")
    for way in chosen:  # the next run must measure again, with its own code
        _kept(way, given).unlink()
    if not any(_kept(way, given).exists() for way in WAYS):
        (given.work / FACTS).unlink()


def _kept(way: Way, given: argparse.Namespace) -> Path:
    """Return the file that holds a system's figures until all systems are recorded."""
    folder: Path = given.work
    return folder / f"{way.name}.json"


def facts(given: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that the figures of all systems depend on."""
    names = ("warm", "count", "users", "settle", "period_s")
    cards = served_cards(Settings(large=PAIR["large"], small=PAIR["small"]))
    weights = {name: card.weights_hash for name, card in cards.items()}
    return {**{name: vars(given)[name] for name in names}, "weights_hashes": weights, "trace_seed": SHIPPED_SEED}


def measured(way: Way, given: argparse.Namespace) -> dict[str, Any]:
    """Return one system's figures, from an interrupted run or measured now."""
    path = _kept(way, given)
    if path.is_file():
        print(f"{way.title}: measured before ({path})", flush=True)
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return kept
    rows = main_size(make_trace(given.warm + given.count, SHIPPED_SEED))
    settings = {
        "torch_threads": 1, "max_rows": ROWS, "log_level": "error", "max_queued": 4 * given.users,
        "monitor_period_s": given.period_s, "monitor_window_s": max(2 * given.period_s, 30.0), **way.settings,
    }  # fmt: skip
    replicas, load = {"gpu_worker": WORKERS, "global_monitor": int(way.monitored)}, round(os.getloadavg()[0], 2)
    with scratch() as folder, Stack(folder, replicas=replicas, settings=settings) as stack:
        figures = {**asyncio.run(drive(stack, way, given, rows)), "load_1min_before": load}
    aside = path.with_suffix(".part")
    aside.write_text(json.dumps(figures), encoding="utf-8")
    aside.replace(path)
    return figures


if __name__ == "__main__":
    main()
