"""Deadlines met by one worker in virtual time: by slack, by priority, and first come first served (PatchedServe §8.1).

    python -m bench.virtual_time.deadlines

Requests arrive at random (Poisson), each size of the model's card equally often, and must finish within 5 times their
standalone time. The serving code decides who joins; ASSUMPTIONS lists what is simulated, and the results repeat it.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.measuring.recording import command_line, machine, quantile, record, settings_of, table
from services.gpu_worker.engine.scheduler import Decision, decide
from services.gpu_worker.engine.slack import Kind, Timed, decide_by_slack
from services.gpu_worker.engine.step_seconds import StepSeconds
from shared.models import ModelCard, find_card
from shared.models.standalone import line_of, pixels_of, read_shipped
from shared.models.step_regression import mix_of

LOADS = (0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5)
SLO = 5.0
"""Deadline in standalone times (PatchedServe §8)."""
FEWER_STEPS = 0.79
"""NIRVANA as the paper simulates it: fewer steps for every request. NIRVANA reports 21 % of compute saved."""
NOISE = 0.05
"""Standard deviation of the logarithm of a step's seconds, which no predictor knows."""
NOBODY: frozenset[str] = frozenset()
ASSUMPTIONS = (
    "Seconds of a step: the line through the card's latency.json in passes × pixels. In groups each size has its own "
    "fixed part; in patches all sizes share one, and patches cost nothing besides.",
    f"Each step varies at random by {NOISE:.0%}; the predictor knows the mean.",
    "Load 1 is the throughput of full batches of patches, all sizes equally often, without reuse.",
    "A request that passed its deadline is dropped, waiting or running, in every system; with --keep in none.",
    f"nirvana + orca runs {FEWER_STEPS:.0%} of the steps, first come first served, one batch per size in each step.",
    "The first tenth of the requests fills the queue and does not count.",
)

Policy = Callable[[Sequence[Timed], Sequence[Timed], float, int, StepSeconds], Decision]


@dataclass(frozen=True)
class System:
    name: str
    policy: Policy
    patches: bool = True
    steps: float = 1.0
    """Share of the steps that a request runs."""


def by_slack(waiting: Sequence[Timed], running: Sequence[Timed], now: float, rows: int, of: StepSeconds) -> Decision:
    return decide_by_slack(waiting, running, NOBODY, now, rows, {"model": of})


def by_priority(waiting: Sequence[Timed], running: Sequence[Timed], now: float, rows: int, of: StepSeconds) -> Decision:
    return decide(waiting, running, NOBODY, now, rows)


def by_arrival(waiting: Sequence[Timed], running: Sequence[Timed], now: float, rows: int, of: StepSeconds) -> Decision:
    first = waiting[: max(rows - len(running), 0)]
    return Decision(join=tuple(task.id for task in first))


SYSTEMS = (
    System("slack, patches", by_slack),
    System("slack, patches, fewer steps", by_slack, steps=FEWER_STEPS),
    System("slack, groups", by_slack, patches=False),
    System("priority, patches", by_priority),
    System("priority, groups", by_priority, patches=False),
    System("first come, patches", by_arrival),
    System("first come, groups", by_arrival, patches=False),
    System("nirvana + orca", by_arrival, patches=False, steps=FEWER_STEPS),
)


@dataclass(frozen=True)
class Worker:
    """A model's step times and sizes, and the rows of the worker."""

    card: ModelCard
    rows: int
    steps: int

    def seconds(self, *, patches: bool) -> StepSeconds:
        latency = read_shipped(self.card) or {}
        decode_s = float(latency.get("decode_s", 0.0)) / pixels_of(self.card)
        return StepSeconds(line_of(self.card, latency), decode_pixel_s=decode_s, together=patches)

    @property
    def kinds(self) -> list[Kind]:
        passes = 2 if self.card.default_guidance > 1 else 1
        return [((size.width, size.height, 1), passes) for size in self.card.sizes.sizes or (self.card.default_size,)]

    def alone_s(self, kind: Kind) -> float:
        of = self.seconds(patches=True)
        return self.steps * of.of(mix_of([kind])) + of.decode_s(kind[0][0] * kind[0][1])

    @property
    def capacity(self) -> float:
        """Return the requests per second of full batches in which every size is equally frequent."""
        of, kinds = self.seconds(patches=True), self.kinds
        step_s = sum(of.of(mix_of([kind] * self.rows)) for kind in kinds) / len(kinds)  # linear in the pixels
        decode_s = sum(of.decode_s(width * height) for (width, height, _), _ in kinds) / len(kinds)
        return self.rows / (self.steps * step_s + self.rows * decode_s)


def arrivals(worker: Worker, load: float, count: int, seed: int) -> Iterator[Timed]:
    draw, at, kinds = random.Random(seed), 0.0, worker.kinds
    for number in range(count):
        at += draw.expovariate(load * worker.capacity)
        kind = draw.choice(kinds)
        deadline_at = at + SLO * worker.alone_s(kind)
        yield Timed(str(number), "model", kind, worker.steps, worker.steps, at, deadline_at=deadline_at, arrived=number)


def serve(worker: Worker, system: System, requests: Sequence[Timed], *, drop: bool, seed: int) -> dict[str, Any]:
    """Serve the requests in virtual time; return the ends by id, the seconds of the decisions and the steps run."""
    of, draw, now = worker.seconds(patches=system.patches), random.Random(seed), 0.0
    steps = round(system.steps * worker.steps)
    coming = [replace(one, steps=steps, left=steps, drop_if_late=drop) for one in reversed(requests)]
    waiting, running = list[Timed](), list[Timed]()
    ends, decided, ran = dict[str, float](), list[float](), 0
    while coming or waiting or running:
        while coming and coming[-1].since <= now:
            waiting.append(coming.pop())
        if drop:
            waiting, running = ([one for one in some if (one.deadline_at or 0) >= now] for some in (waiting, running))
        if waiting:
            begun = time.perf_counter()
            decision = system.policy(waiting, running, now, worker.rows, of)
            decided.append(time.perf_counter() - begun)
            join = {*decision.join}
            running += [replace(one, aged=one.id in decision.aged) for one in waiting if one.id in join]
            waiting = [one for one in waiting if one.id not in join]
        if not running:
            upcoming = [coming[-1].since] if coming else []
            now = min([*upcoming, *(one.deadline_at or now for one in waiting)], default=now) + 1e-9
            continue
        now += of.of(mix_of(one.kind for one in running)) * draw.lognormvariate(0.0, NOISE)
        ran += len(running)
        running = [replace(one, left=one.left - 1) for one in running]
        for one in [one for one in running if not one.left]:
            now += of.decode_s(one.kind[0][0] * one.kind[0][1])
            ends[one.id] = now
        running = [one for one in running if one.left]
    return {"ends": ends, "decided_s": decided, "row_steps": ran}


def judged(worker: Worker, requests: Sequence[Timed], served: dict[str, Any]) -> dict[str, float]:
    counted, ends = requests[len(requests) // 10 :], served["ends"]
    met = [one for one in counted if ends.get(one.id, float("inf")) <= (one.deadline_at or 0.0)]
    waits = [(ends[one.id] - one.since) / worker.alone_s(one.kind) for one in counted if one.id in ends]
    of_size = {kind: [one.kind == kind for one in counted] for kind in worker.kinds}
    by_size = {
        "x".join(map(str, kind[0][:2])): sum(one.kind == kind for one in met) / max(sum(of_size[kind]), 1)
        for kind in worker.kinds
    }
    return {
        "met": len(met) / len(counted),
        "least_met_of_a_size": min(by_size.values()),
        "wait_p99": quantile(waits, 0.99),
        "decision_p99_ms": 1000 * quantile(served["decided_s"], 0.99),
        "row_steps": served["row_steps"],
    }


def load_allowed(levels: Sequence[dict[str, Any]], name: str, met: float) -> float:
    """Return the load up to which this share of deadlines is met: linear between the measured loads."""
    before, share = 0.0, 1.0
    for level in levels:
        found = level["systems"][name]["met"]
        if found < met:
            return float(before + (level["load"] - before) * (share - met) / (share - found))
        before, share = level["load"], found
    return before


def decision_ms(worker: Worker, waiting: int = 1000) -> float:
    """Return the median milliseconds of processor time for one decision by slack with one free row."""
    draw, of = random.Random(0), {"model": worker.seconds(patches=True)}
    queue = [
        replace(one, since=0.0, steps=draw.randint(1, 10) * 5, left=draw.randint(1, 10) * 5)
        for one in arrivals(worker, 1.0, waiting + worker.rows, seed=0)
    ]
    running = [replace(one, left=draw.randint(1, 50), deadline_at=1e9) for one in queue[: worker.rows - 1]]
    taken = []
    for _ in range(101):
        begun = time.process_time()
        decide_by_slack(queue[worker.rows :], running, NOBODY, 0.0, worker.rows, of)
        taken.append(time.process_time() - begun)
    return 1000 * quantile(taken, 0.5)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--model", default="bundled:large")
    parser.add_argument("--rows", type=int, default=8, help="most requests in a step")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--count", type=int, default=600, help="requests at each load")
    parser.add_argument("--loads", type=float, nargs="+", default=list(LOADS), help="shares of the capacity")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--keep", action="store_true", help="drop nobody")
    options = parser.parse_args(arguments)
    worker, on = Worker(find_card(options.model), options.rows, options.steps), machine()
    levels = [_level(worker, load, options) for load in options.loads]
    names = [system.name for system in SYSTEMS]
    heads = ["load", *names]
    print(
        table(
            heads, [[f"{one['load']:g}", *(f"{one['systems'][name]['met']:.1%}" for name in names)] for one in levels]
        )
    )
    allowed = {name: {f"{met:g}": load_allowed(levels, name, met) for met in (0.99, 0.95, 0.9)} for name in names}
    print()
    print(table(["load that allows", "99 %", "95 %", "90 %"], [[name, *one.values()] for name, one in allowed.items()]))
    mean = {name: sum(one["systems"][name]["met"] for one in levels) / len(levels) for name in names}
    figures = {"capacity_per_s": worker.capacity, "levels": levels, "load_allowed": allowed, "mean_met": mean}
    figures["decision_of_1000_ms"] = decision_ms(worker)
    print(f"\none decision with 1,000 waiting: {figures['decision_of_1000_ms']:.2f} ms")
    print("\nmean over the loads: " + ", ".join(f"{name} {share:.1%}" for name, share in mean.items()))
    settings = {**settings_of(options), "assumptions": ASSUMPTIONS}
    record("deadlines_keep" if options.keep else "deadlines", figures, settings, on=on, folder=options.out)


def _level(worker: Worker, load: float, options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for system in SYSTEMS:
        runs = []
        for seed in options.seeds:
            requests = list(arrivals(worker, load, options.count, seed))
            served = serve(worker, system, requests, drop=not options.keep, seed=seed)
            runs.append(judged(worker, requests, served))
        found[system.name] = {key: sum(run[key] for run in runs) / len(runs) for key in runs[0]}
    return {"load": load, "systems": found}


if __name__ == "__main__":
    main()
