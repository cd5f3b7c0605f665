"""Deadlines met by 1 to 8 workers in virtual time, ours and the paper's baselines (PatchedServe §8.1, Figs. 11–13).

    python -m bench.virtual_time.deadlines
    python -m bench.virtual_time.deadlines --count 20 --workers 1 --loads .9 --out out/quick    # does the command work?

Requests arrive at random (Poisson), each size of the model's card equally often, and must finish within 5 times their
standalone time. The serving code decides who joins; ASSUMPTIONS lists what is simulated, and the results repeat it.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench.measuring.recording import command_line, machine, quantile, record, settings_of, table
from bench.virtual_time.fleet import (
    NOBODY,
    NOISE,
    SLO,
    Fleet,
    Served,
    System,
    Worker,
    arrivals,
    by_arrival,
    by_resolution,
    by_slack,
    by_slack_aside,
)
from services.cli.profiles.mixes import fit
from services.gpu_worker.engine.finishes import Timed
from services.gpu_worker.engine.slack import decide_by_slack
from services.gpu_worker.engine.step_seconds import StepSeconds
from shared.models import find_card
from shared.models.step_regression import mix_of

LOADS = (0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5)
WORKERS = (1, 2, 4, 8)
MET = (0.99, 0.95, 0.9)
FEWER_STEPS = 0.79
"""NIRVANA as the paper simulates it: fewer steps for every request. NIRVANA reports 21 % of compute saved."""
OURS, SAVING, NIRVANA, WHOLE = "slack", "slack, fewer steps", "nirvana + orca", "slack, whole queue"
SYSTEMS = (
    System(SAVING, by_slack, take="urgent", steps=FEWER_STEPS),
    System(OURS, by_slack, take="urgent"),
    System("slack, set aside", by_slack_aside, take="urgent"),
    System(WHOLE, by_slack, take="whole"),
    System("slack, first come lanes", by_slack),
    System("slack, least pixels", by_slack, take="pixels"),
    System("slack, groups", by_slack, take="urgent", patches=False),
    System("first come, patches", by_arrival),
    System("first come, per resolution", by_resolution, take="whole", patches=False),
    System(NIRVANA, by_arrival, patches=False, steps=FEWER_STEPS),
    System("nirvana, one resolution", by_resolution, take="whole", patches=False, steps=FEWER_STEPS),
)
COMMON = (
    "Seconds of a step: the line through the card's latency.json in passes × pixels. In groups each size has its own "
    "fixed part; in patches all sizes share one, and patches cost nothing besides.",
    f"Each step varies at random by {NOISE:.0%}; the predictor knows the mean.",
    "Load 1 is the throughput of full batches of patches on all workers, all sizes equally often, without reuse.",
    "A request that passed its deadline is dropped, waiting or running, in every system; with --keep in none.",
    "The first fifth of the requests fills the queue and does not count.",
)
ASSUMPTIONS = (
    *COMMON,
    "slack: a worker with a free row takes the request of the least slack in the lane (lane_order=urgent, "
    "scheduler=slack). first come lanes: it takes the first (lane_order=arrival). whole queue: each worker decides "
    "over all that wait. least pixels: each request goes at once to the worker with the fewest pixels (§8.1).",
    f"nirvana + orca runs {FEWER_STEPS:.0%} of the steps, first come first served, one batch per size in each step. "
    "one resolution: its batch holds one size, and other sizes wait until it is empty.",
)


def serve(
    worker: Worker, system: System, requests: Sequence[Timed], *, drop: bool, seed: int, workers: int = 1
) -> Served:
    """Serve the requests in virtual time."""
    return Fleet(worker, system, workers, drop=drop, seed=seed).serve(requests)


def judged(worker: Worker, requests: Sequence[Timed], served: Served) -> dict[str, float]:
    counted, ends = requests[len(requests) // 5 :], served.ends
    met = [one for one in counted if ends.get(one.id, float("inf")) <= (one.deadline_at or 0.0)]
    waits = [(ends[one.id] - one.since) / worker.alone_s(one.kind) for one in counted if one.id in ends]
    of_size = {kind: [one.kind == kind for one in counted] for kind in worker.kinds}
    by_size = [sum(one.kind == kind for one in met) / max(sum(of_size[kind]), 1) for kind in worker.kinds]
    return {
        "met": len(met) / len(counted),
        "least_met_of_a_size": min(by_size),
        "wait_p99": quantile(waits, 0.99) if waits else 0.0,
        "row_steps": served.row_steps,
        "set_aside": served.aside,
    }


def load_allowed(levels: Sequence[Mapping[str, Any]], name: str, met: float) -> float:
    """Return the load up to which this share of deadlines is met: linear between the measured loads."""
    before, share = 0.0, 1.0
    for level in levels:
        found = level["systems"][name]["met"]
        if found < met:
            return float(before + (level["load"] - before) * (share - met) / (share - found))
        before, share = level["load"], found
    return before


def decision_ms(worker: Worker, waiting: int = 1000) -> dict[str, float]:
    """Return the median milliseconds of processor time for one decision by slack with one free row: predicted by the
    line; by the support vectors' exported arrays; and by these where no mix has been predicted before."""
    draw, line = random.Random(0), worker.seconds(patches=True)
    queue = [
        replace(one, since=0.0, steps=draw.randint(1, 10) * 5, left=draw.randint(1, 10) * 5)
        for one in arrivals(worker, 1.0, waiting + worker.rows, seed=0)
    ]
    running = [replace(one, left=draw.randint(1, 50), deadline_at=1e9) for one in queue[: worker.rows - 1]]
    mixes = [mix_of(draw.choices(worker.kinds, k=draw.randint(1, worker.rows))) for _ in range(300)]
    regression = fit([(mix, line.of(mix) * draw.lognormvariate(0.0, NOISE)) for mix in mixes], "patches")

    def median_ms(of: Callable[[], StepSeconds], waiting: int = waiting) -> float:
        taken, some = [], queue[worker.rows : worker.rows + waiting]
        for _ in range(101):
            seconds, begun = {"model": of()}, time.process_time()
            decide_by_slack(some, running, NOBODY, 0.0, worker.rows, seconds)
            taken.append(time.process_time() - begun)
        return 1000 * quantile(taken, 0.5)

    vectors = StepSeconds(together=True, regression=regression)
    return {
        "line": median_ms(lambda: line),
        "support vectors": median_ms(lambda: vectors),
        "support vectors, new mixes": median_ms(lambda: StepSeconds(together=True, regression=regression)),
        f"support vectors, {worker.rows} waiting": median_ms(lambda: vectors, worker.rows),
    }


def compared(levels: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of issue and paper from the shares met at each load."""

    def met(level: Mapping[str, Any], name: str) -> float:
        return float(level["systems"][name]["met"])

    names = [system.name for system in SYSTEMS]
    allowed = {name: {f"{share:g}": load_allowed(levels, name, share) for share in MET} for name in names}
    mean = {name: sum(met(level, name) for level in levels) / len(levels) for name in names}
    return {
        "mean_met": mean,
        "load_allowed": allowed,
        "points_above_nirvana": {name: 100 * (mean[name] - mean[NIRVANA]) for name in (OURS, SAVING)},
        "load_ratio_to_nirvana": {
            name: {share: allowed[name][share] / max(allowed[NIRVANA][share], 1e-9) for share in allowed[name]}
            for name in (OURS, SAVING)
        },
        # with the same saving of steps, against every other system at every load
        "least_points_above_any_other": {
            name: min(100 * (met(level, SAVING) - met(level, name)) for level in levels) for name in names
        },
        "met_where_nirvana_meets_90": {
            name: min(
                (met(one, name) for one in levels if one["load"] <= allowed[NIRVANA]["0.9"]), default=float("nan")
            )
            for name in (OURS, SAVING)
        },
        "most_points_below_whole_queue": max(100 * (met(level, WHOLE) - met(level, OURS)) for level in levels),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--model", default="bundled:large")
    parser.add_argument("--rows", type=int, default=8, help="most requests in a step")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--count", type=int, default=150, help="requests of each worker at each load and seed")
    parser.add_argument("--workers", type=int, nargs="+", default=list(WORKERS))
    parser.add_argument("--loads", type=float, nargs="+", default=list(LOADS), help="shares of the capacity")
    parser.add_argument(
        "--seeds", type=int, default=4, help="runs with one worker; half as many with twice the workers"
    )
    parser.add_argument("--slos", type=float, nargs="+", default=[SLO], help="deadlines in standalone times, mixed")
    parser.add_argument("--decision", action="store_true", help="measure one decision, and nothing else")
    parser.add_argument("--keep", action="store_true", help="drop nobody")
    options = parser.parse_args(arguments)
    worker, on = Worker(find_card(options.model), options.rows, options.steps), machine()
    figures: dict[str, Any] = {"decision_of_1000_ms": decision_ms(worker)}
    for name, took in figures["decision_of_1000_ms"].items():
        print(f"one decision with 1,000 waiting or as said, {name}: {took:.2f} ms", flush=True)
    if options.decision:
        record("deadlines_decision", figures, settings_of(options), on=on, folder=options.out)
        return
    figures |= {"capacity_per_s": worker.capacity, "workers": {}}
    for workers in options.workers:
        levels = [_level(worker, workers, load, options) for load in options.loads]
        found = figures["workers"][str(workers)] = {"levels": levels, **compared(levels)}
        _show(workers, levels, found)
    settings = {**settings_of(options), "assumptions": ASSUMPTIONS}
    name = "deadlines" + ("_keep" if options.keep else "") + ("" if options.slos == [SLO] else "_mixed")
    record(name, figures, settings, on=on, folder=options.out)


def _level(worker: Worker, workers: int, load: float, options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for system in SYSTEMS:
        runs = []
        for seed in range(1, max(options.seeds // workers, 1) + 1):
            requests = list(arrivals(worker, load, options.count * workers, seed, workers, options.slos))
            served = serve(worker, system, requests, drop=not options.keep, seed=seed, workers=workers)
            runs.append(judged(worker, requests, served))
        found[system.name] = {key: sum(run[key] for run in runs) / len(runs) for key in runs[0]}
    return {"load": load, "systems": found}


def _show(workers: int, levels: Sequence[Mapping[str, Any]], found: Mapping[str, Any]) -> None:
    print(
        f"\n{workers} workers: % of deadlines met, and the load that allows a share\n" if workers > 1 else "1 worker\n"
    )
    heads = ["system", *(f"{level['load']:g}" for level in levels), "mean", *(f"{share:.0%}" for share in MET)]
    rows = [
        [
            name,
            *(f"{100 * level['systems'][name]['met']:.1f}" for level in levels),
            f"{100 * found['mean_met'][name]:.1f}",
            *(f"{load:.2f}" for load in found["load_allowed"][name].values()),
        ]
        for name in found["mean_met"]
    ]
    print(table(heads, rows), flush=True)
    for key in ("points_above_nirvana", "load_ratio_to_nirvana", "met_where_nirvana_meets_90"):
        print(f"{key}: {found[key]}")
    print(f"most points below the whole queue: {found['most_points_below_whole_queue']:.1f}", flush=True)


if __name__ == "__main__":
    main()
