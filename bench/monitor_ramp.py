"""A ramp of demand up and down in virtual time: offered against served for three systems, and the allocation.

    python -m bench.monitor_ramp

16 workers with the measured latencies of the bundled models (`latency.json`: 64×64, one thread, batches of 8), driven
by the same code as the services: global_monitor decides, gpu_worker.duty says who takes from which lane. What is
assumed stands in ASSUMPTIONS and in the results.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from bench.recording import RESULTS, quantile, record, table
from bench.virtual_workers import Done, Request, Speed, Worker, Workers
from services.global_monitor.allocation import allocate
from services.global_monitor.fleet import Group
from services.global_monitor.monitor import Decision, GlobalMonitor, Rules
from services.global_monitor.workload import Workload
from shared.messages import JobQueued, JobSucceeded, WorkerReported, WorkersAssigned, lane_of, refine_lane
from shared.models.card import BUNDLED

LARGE, SMALL = "large", "small"
BATCH = 8
REPORT_S = 5.0
BAND = 2
"""Switches that the hysteresis may add or spare: .75 of a worker, so one where the ramp turns, there and back."""
ASSUMPTIONS = (
    "A worker serves one request at a time, as fast as a full batch of 8 serves each of its rows; decoding is added. "
    "Nothing else takes time: no planning, no fetching, no encoding.",
    "Arrivals are Poisson with the rate of the ramp. Hit rate and K are independent draws from the session trace's "
    "histogram (bench/results/session_trace.json, exact repeats apart), whatever is in the cache by then.",
    "NIRVANA's hits save that K. MoDM's hits are as many and save that K or the largest that the bundled small model's "
    "measured table allows for the large model's pictures (image_k_table_large_0.95.json), whichever is less; whoever "
    "refines, large or small, starts after the same K.",
    "A switch costs half a generation of a full batch (the batch empties as its rows end); both models stay loaded.",
    "NIRVANA and vanilla run the large model on every worker.",
    "The oracle knows the mean rate of every coming period and takes eq. 10's split for it (eq. 12's where none is), "
    "with the same headroom; its switches cost nothing.",
)


@dataclass(frozen=True)
class Ramp:
    """Requests a second: `low` for `hold_s`, up to `high` in `ramp_s`, there for `hold_s`, and down again."""

    low: float
    high: float
    hold_s: float
    ramp_s: float

    @property
    def ends_at(self) -> float:
        return 3 * self.hold_s + 2 * self.ramp_s

    def rate(self, at: float) -> float:
        hold, ramp = self.hold_s, self.ramp_s
        up = min(max((at - hold) / ramp, 0.0), 1.0)
        down = min(max((at - 2 * hold - ramp) / ramp, 0.0), 1.0)
        return self.low + (self.high - self.low) * (up - down)

    def mean(self, start: float, seconds: float) -> float:
        return sum(self.rate(start + seconds * (n + 0.5) / 20) for n in range(20)) / 20


def speed_of(model: str) -> Speed:
    measured = json.loads((BUNDLED / model / "latency.json").read_text())
    batch_s = float(measured["step_s"][str(BATCH)])
    return Speed(batch_s / BATCH, float(measured["decode_s"]), batch_s)


def k_shares(results: Path = RESULTS) -> dict[int, float]:
    """Share of what was drawn in the session trace, by K of 50."""
    figures = json.loads((results / "session_trace.json").read_text())["figures"]
    counts = {int(k): int(count) for k, count in figures["k_histogram"].items()}
    return {k: count / sum(counts.values()) for k, count in counts.items()}


def largest_image_k() -> int:
    table_ = json.loads((BUNDLED / SMALL / f"image_k_table_{LARGE}_0.95.json").read_text())
    return max(int(level["k"]) for level in table_["levels"])


def capped(shares: dict[int, float], most: int) -> dict[int, float]:
    found = defaultdict[int, float](float)
    for k, share in shares.items():
        found[min(k, most)] += share
    return dict(found)


def arrivals(ramp: Ramp, shares: dict[int, float], seed: int) -> Iterator[Request]:
    """Poisson by thinning; the same seed gives the same times and, up to a cap, the same K."""
    times, ks = random.Random(seed), random.Random(seed + 1)
    values, at, number = list(shares), 0.0, 0
    weights = list(accumulate(shares.values()))
    while (at := at + times.expovariate(ramp.high)) < ramp.ends_at:
        if times.random() * ramp.high <= ramp.rate(at):
            number += 1
            yield Request(number, at, ks.choices(values, cum_weights=weights)[0])


@dataclass
class Run:
    """What came of one system."""

    done: list[Done] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    models: list[tuple[float, int]] = field(default_factory=list)
    """(at, workers that run the large model)."""
    switches: int = 0


def plain(ramp: Ramp, shares: dict[int, float], count: int, seed: int) -> Run:
    """Every worker large; with shares {0: 1} vanilla, else NIRVANA."""
    run = Run()
    workers = Workers((LARGE,), {LARGE: speed_of(LARGE)}, count, lambda _: lane_of(LARGE), run.done.append)
    workers.run(arrivals(ramp, shares, seed), lambda _: None, ramp.ends_at)
    return run


class Modm:
    """The monitor over virtual workers."""

    def __init__(self, ramp: Ramp, shares: dict[int, float], count: int, rules: Rules, seed: int) -> None:
        self.run = Run(models=[(0.0, count)])
        self._ramp, self._shares, self._seed, self._rules = ramp, shares, seed, rules
        self._speeds = {model: speed_of(model) for model in (LARGE, SMALL)}
        self._steps = tuple((model, BATCH, speed.batch_s) for model, speed in self._speeds.items())
        self._monitor = GlobalMonitor(rules, 0.0)
        self._workers = Workers((LARGE, SMALL), self._speeds, count, _lane, self._done, self._changed)

    def __call__(self) -> Run:
        self._look(0.0, self._rules.period_s)
        self._workers.run(arrivals(self._ramp, self._shares, self._seed), self._arrived, self._ramp.ends_at)
        return self.run

    def _arrived(self, request: Request) -> None:
        source = "image" if request.k else "noise"
        fact = JobQueued(str(request.number), _lane(request), LARGE, source, start_step=request.k)
        self._monitor.hear(fact, request.at)

    def _done(self, done: Done) -> None:
        self.run.done.append(done)
        steps = 50 - done.request.k
        self._monitor.hear(JobSucceeded(str(done.request.number), 1, done.worker, done.model, steps), done.at)

    def _changed(self, worker: Worker, at: float) -> None:
        self._report(worker, at)
        self.run.models.append((at, sum(one.duty.model == LARGE for one in self._workers.workers)))

    def _report(self, worker: Worker, at: float) -> None:
        self._monitor.hear(
            WorkerReported(worker.name, "virtual", worker.duty.model, int(worker.busy), 1, self._steps), at
        )

    def _look(self, at: float, next_: float) -> None:
        for worker in self._workers.workers:
            self._report(worker, at)
        self._monitor.look(at)
        if at >= next_ or self._monitor.urgent:
            self._decide(at)
            next_ = at + self._rules.period_s
        if at + REPORT_S < self._ramp.ends_at:
            self._workers.at(at + REPORT_S, lambda: self._look(at + REPORT_S, next_))

    def _decide(self, at: float) -> None:
        decision = self._monitor.decide(at)
        self.run.decisions.append(decision)
        self.run.switches += len(decision.switches)
        said = WorkersAssigned(tuple(decision.models.items()), decision.mode)
        self._workers.assign({one.name: one.duty.after(said, one.name) for one in self._workers.workers})


def _lane(request: Request) -> str:
    return refine_lane() if request.k else lane_of(LARGE)


def oracle(ramp: Ramp, shares: dict[int, float], count: int, rules: Rules) -> list[int]:
    """Large workers in every period, by who knows its mean rate."""
    rates = {model: BATCH / speed_of(model).batch_s / 50 for model in (LARGE, SMALL)}
    fleet = {SMALL: [Group(count, rates[LARGE], rates[SMALL])]}
    hit_work, large = sum(share * (1 - k / 50) for k, share in shares.items() if k), [count]
    for period in range(int(ramp.ends_at // rules.period_s)):
        rate = ramp.mean(period * rules.period_s, rules.period_s) * (1 + rules.headroom)
        work = Workload(rate * shares.get(0, 0.0), rate * hit_work)
        large.append(round(allocate(count, fleet, work, rules.mode, small=SMALL, large=large[-1]).large))
    return large


def per_minute(times: Sequence[float], minutes: int) -> list[float]:
    """Requests a second, minute by minute."""
    counts = Counter(int(at // 60) for at in times)
    return [counts[minute] / 60 for minute in range(minutes)]


def reversals(counts: Sequence[int]) -> int:
    moves = [after - before for before, after in pairwise(counts) if after != before]
    return sum(one * other < 0 for one, other in pairwise(moves))


def figures_of(ramp: Ramp, runs: dict[str, Run], offered: Sequence[Request], best: Sequence[int]) -> dict[str, Any]:
    minutes = int(ramp.ends_at // 60)
    modm = runs["modm"]
    large = [decision.count(LARGE) for decision in modm.decisions]
    moved = sum(abs(after - before) for before, after in pairwise(best))
    systems = {}
    for name, run in runs.items():
        waits = [done.at - done.request.at for done in run.done]
        served = per_minute([done.at for done in run.done], minutes)
        systems[name] = {
            "served": len(run.done),
            "share_served": len(run.done) / len(offered),
            "highest_rate": max(served),
            "seconds_p50": quantile(waits, 0.5),
            "seconds_p99": quantile(waits, 0.99),
            "served_per_s": [round(value, 2) for value in served],
        }
    return {
        "offered": len(offered),
        "offered_per_s": [round(value, 2) for value in per_minute([one.at for one in offered], minutes)],
        "systems": systems,
        "switches": modm.switches,
        "oracle_switches": moved,
        "reversals": reversals(large),
        "oracle_reversals": reversals(best),
        "within_one_and_the_band": abs(modm.switches - moved) <= 1 + BAND,
        "large_by_decision": [[round(one.at, 1), one.count(LARGE)] for one in modm.decisions],
        "oracle_large": list(best),
        "kept": sum(bool(one.kept) for one in modm.decisions),
        "decisions_by_mode": dict(Counter(one.mode for one in modm.decisions)),
    }


def plot(figures: dict[str, Any], run: Run, path: Path) -> None:
    """Offered against served, minute by minute, and the allocation below it (MoDM Fig. 17)."""
    try:
        import matplotlib as mpl
    except ImportError:
        print("no plot: matplotlib is not installed")
        return
    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (rates, models) = pyplot.subplots(2, 1, sharex=True, figsize=(9, 6.5), height_ratios=(3, 2))
    minutes = range(len(figures["offered_per_s"]))
    rates.plot(minutes, figures["offered_per_s"], color="black", linestyle=":", label="offered")
    for name, label in (("vanilla", "vanilla large"), ("nirvana", "NIRVANA"), ("modm", "MoDM")):
        rates.plot(minutes, figures["systems"][name]["served_per_s"], label=label)
    rates.set_ylabel("requests / s")
    rates.legend()
    ends = len(minutes)
    at = [*(when / 60 for when, _ in run.models), ends]
    large = [*(count for _, count in run.models), run.models[-1][1]]
    models.fill_between(at, large, step="post", alpha=0.5, label="large")
    models.fill_between(at, large, run.models[0][1], step="post", alpha=0.5, label="small")
    models.plot(
        [one.at / 60 for one in run.decisions], [one.pid.output for one in run.decisions], "k-", lw=0.8, label="PID"
    )
    period = run.decisions[1].at - run.decisions[0].at if len(run.decisions) > 1 else 1.0
    oracle_at = [number * period / 60 for number in range(len(figures["oracle_large"]) - 1)]
    models.step(oracle_at, figures["oracle_large"][1:], where="post", color="red", lw=0.8, label="oracle")
    models.set_ylabel("workers")
    models.set_xlabel("minutes")
    models.legend(ncols=4, loc="lower left")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--low", type=float, default=0.4, help="offered at the ends, in vanilla's capacity")
    parser.add_argument("--high", type=float, default=2.6, help="offered at the top, in vanilla's capacity")
    parser.add_argument("--hold-min", type=float, default=10.0)
    parser.add_argument("--ramp-min", type=float, default=40.0)
    parser.add_argument("--period-s", type=float, default=180.0)
    parser.add_argument("--mode", choices=("quality", "throughput"), default="quality")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    capacity = given.workers / speed_of(LARGE).seconds(0)
    ramp = Ramp(given.low * capacity, given.high * capacity, 60 * given.hold_min, 60 * given.ramp_min)
    rules = Rules(LARGE, (SMALL,), mode=given.mode, period_s=given.period_s, window_s=max(given.period_s, 60.0))
    shares = k_shares()
    of_pictures = capped(shares, largest_image_k())
    runs = {
        "vanilla": plain(ramp, {0: 1.0}, given.workers, given.seed),
        "nirvana": plain(ramp, shares, given.workers, given.seed),
        "modm": Modm(ramp, of_pictures, given.workers, rules, given.seed)(),
    }
    offered = list(arrivals(ramp, of_pictures, given.seed))
    figures = figures_of(ramp, runs, offered, oracle(ramp, of_pictures, given.workers, rules))
    figures |= {"vanilla_capacity_per_s": capacity, "k_shares": shares, "k_shares_of_pictures": of_pictures}
    given.out.mkdir(parents=True, exist_ok=True)
    plot(figures, runs["modm"], given.out / "monitor_ramp.png")
    rows = [
        [name, one["served"], f"{one['share_served']:.1%}", one["highest_rate"], one["seconds_p50"], one["seconds_p99"]]
        for name, one in figures["systems"].items()
    ]
    print(table(["system", "served", "of what was offered", "highest a second", "p50 s", "p99 s"], rows))
    print(
        f"\n{figures['switches']} switches, the oracle {figures['oracle_switches']}; "
        f"{figures['reversals']} changes of direction, the oracle {figures['oracle_reversals']}"
    )
    settings = {key: value for key, value in vars(given).items() if key != "out"}
    settings |= {"rules": asdict(rules), "assumptions": ASSUMPTIONS}
    record("monitor_ramp", figures, settings, folder=given.out)


if __name__ == "__main__":
    main()
