"""A ramp of demand up and down in virtual time: offered against served for three systems, and the allocation.

    python -m bench.virtual_time.monitor_ramp

16 workers use the measured latencies of the bundled models (`latency.json`: 64×64, one thread, batches of up to 8) and
the hits of bench.trace_plans. The services' own code drives them: services/global_monitor assigns models, and
gpu_worker/models/model_assignment.py maps models to lanes. ASSUMPTIONS lists the assumptions; the results repeat them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.measuring.plotting import pyplot_or_none
from bench.measuring.recording import machine, quantile, record, settings_of, table, virtual_command_line
from bench.trace_plans import Hits, load_hits
from bench.virtual_time.two_models import ASSUMPTIONS as SHARED
from bench.virtual_time.virtual_systems import (
    LARGE,
    SMALL,
    Arrivals,
    Modm,
    Run,
    bundled_speeds,
    miss,
    plain,
    plans_of,
    poisson,
)
from services.global_monitor.allocation.fleet import Group
from services.global_monitor.allocation.modes import allocate
from services.global_monitor.allocation.workload import Workload
from services.global_monitor.decision import Rules
from services.replay.simulated.pace import Profile
from shared.domain.types import PlanSource

BATCH = 8
BAND = 2
"""Tolerated difference in switches: the hysteresis of .75 workers may add or avoid one switch and its reversal where
the ramp turns."""
ASSUMPTIONS = (
    *SHARED[:2],
    "Arrivals are Poisson with the rate of the ramp.",
    "A worker that is to switch finishes its rows and takes nothing new meanwhile; both models stay loaded.",
    "Our latents and vanilla run the large model on every worker.",
    "The oracle knows the mean rate of every coming period and takes eq. 10's split for it (eq. 12's where none is), "
    "with the same headroom; its switches cost nothing.",
)


@dataclass(frozen=True)
class Ramp:
    """Requests per second: `low` for `hold_s`, up to `high` in `ramp_s`, `high` for `hold_s`, and down again."""

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


def arrivals(ramp: Ramp, seed: int) -> Arrivals:
    return poisson(ramp.rate, ramp.high, ramp.ends_at, seed)


def work_of(hits: Hits) -> Workload:
    """Return the work of one request in full generations, by the models that may do it."""
    miss_work = hit_work = small_work = 0.0
    for one in hits.served:
        left = one.steps_run / one.steps / len(hits.served)
        if one.source != PlanSource.IMAGE:
            miss_work += left
        elif len(one.may_run) == 1:
            small_work += left
        else:
            hit_work += left
    return Workload(miss_work, hit_work, small_work)


def oracle(ramp: Ramp, each: Workload, speeds: dict[str, Profile], count: int, rules: Rules) -> list[int]:
    """Return the large workers per period of an allocator that knows the mean rate; `each` is the work of one
    request."""
    rates = {model: BATCH / speed.of(BATCH) / 50 for model, speed in speeds.items()}
    fleet = {SMALL: [Group(count, rates[LARGE], rates[SMALL])]}
    large = [count]
    for period in range(int(ramp.ends_at // rules.period_s)):
        rate = ramp.mean(period * rules.period_s, rules.period_s) * (1 + rules.headroom)
        target = allocate(count, fleet, each.times(rate), rules.mode, small=SMALL, large=large[-1])
        large.append(round(target.large))
    return large


def per_minute(times: Sequence[float], minutes: int) -> list[float]:
    """Return requests per second, minute by minute."""
    counts = Counter(int(at // 60) for at in times)
    return [counts[minute] / 60 for minute in range(minutes)]


def reversals(counts: Sequence[int]) -> int:
    moves = [after - before for before, after in pairwise(counts) if after != before]
    return sum(one * other < 0 for one, other in pairwise(moves))


def figures_of(ramp: Ramp, runs: dict[str, Run], offered: Sequence[float], best: Sequence[int]) -> dict[str, Any]:
    minutes = int(ramp.ends_at // 60)
    modm = runs["modm"]
    large = [decision.count(LARGE) for decision in modm.decisions]
    moved = sum(abs(after - before) for before, after in pairwise(best))
    systems = {}
    for name, run in runs.items():
        waits = [done.seconds for done in run.done]
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
        "offered_per_s": [round(value, 2) for value in per_minute(offered, minutes)],
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
    """Plot offered against served requests by minute, and the allocation below (MoDM Fig. 17)."""
    pyplot = pyplot_or_none()
    if pyplot is None:
        return
    figure, (rates, models) = pyplot.subplots(2, 1, sharex=True, figsize=(9, 6.5), height_ratios=(3, 2))
    minutes = range(len(figures["offered_per_s"]))
    rates.plot(minutes, figures["offered_per_s"], color="black", linestyle=":", label="offered")
    for name, label in (("vanilla", "vanilla large"), ("nirvana", "latents (ours)"), ("modm", "MoDM")):
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
    parser = virtual_command_line(__doc__)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--low", type=float, default=0.4, help="load at both ends, in vanilla's capacity")
    parser.add_argument("--high", type=float, default=2.6, help="load at the top, in vanilla's capacity")
    parser.add_argument("--hold-min", type=float, default=10.0)
    parser.add_argument("--ramp-min", type=float, default=40.0)
    parser.add_argument("--mode", choices=("quality", "throughput"), default="quality")
    given = parser.parse_args(arguments)
    on, speeds = machine(), bundled_speeds()
    capacity = given.workers / speeds[LARGE].share_s(BATCH)
    ramp = Ramp(given.low * capacity, given.high * capacity, 60 * given.hold_min, 60 * given.ramp_min)
    rules = Rules(LARGE, (SMALL,), mode=given.mode, period_s=given.period_s, window_s=max(given.period_s, 60.0))
    hits = {name: load_hits(name, given.plans) for name in ("nirvana", "modm")}
    plans, until = {name: plans_of(one) for name, one in hits.items()}, ramp.ends_at
    runs = {
        "vanilla": plain(arrivals(ramp, given.seed), [miss(LARGE)], speeds, given.workers, until),
        "nirvana": plain(arrivals(ramp, given.seed), plans["nirvana"], speeds, given.workers, until),
        "modm": Modm(arrivals(ramp, given.seed), plans["modm"], speeds, given.workers, rules, until)(),
    }
    offered = [at for _, at in arrivals(ramp, given.seed)]
    best = oracle(ramp, work_of(hits["modm"]), speeds, given.workers, rules)
    figures = figures_of(ramp, runs, offered, best)
    figures |= {
        "vanilla_capacity_per_s": capacity,
        "k_histograms": {name: one.k_histogram for name, one in hits.items()},
        "moved": runs["modm"].moved,
    }
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
    settings = {**settings_of(given), "rules": asdict(rules), "assumptions": ASSUMPTIONS}
    record("monitor_ramp", figures, settings, on=on, folder=given.out)


if __name__ == "__main__":
    main()
