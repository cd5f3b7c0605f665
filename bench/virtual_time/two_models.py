"""Throughput and energy under saturating load in virtual time, against large models alone (MoDM Figs. 7, 11, 18).

    python -m bench.virtual_time.two_models

The simulation uses the bundled pair's measured latencies (`latency.json`: 64×64, one thread, batches of up to 8) and
the decisions of bench.trace_plans. Lanes, assignments, claims and monitor are the services' own code
(services/replay/simulated/workers.py). Every system gets the same arrivals, more than any of them can serve.
ASSUMPTIONS lists the assumptions; the results repeat them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measuring.plotting import pyplot_or_none
from bench.measuring.recording import machine, record, settings_of, table, virtual_command_line
from bench.trace_plans import Hits, load_hits
from bench.virtual_time.energy import BUSY_WATTS, IDLE_WATTS, stated_joules
from bench.virtual_time.virtual_systems import (
    LARGE,
    SMALL,
    Modm,
    Run,
    bundled_speeds,
    handed_out,
    miss,
    plain,
    plans_of,
    served_together,
    steady,
)
from services.global_monitor.decision import Rules
from services.replay.simulated.pace import Profile
from shared.domain.types import PlanSource

FEWER_STEPS = 10
"""Steps of the paper's distilled baseline instead of 50 (SD3.5L-Turbo, MoDM §6)."""
GOAL_SHARE, GOAL_SPEEDUP = 0.85, 2.5
PAPER_ENERGY_SAVED = {"nirvana": "23.9 % (NIRVANA)", "modm_throughput": "46.7 % (SDXL), 66.3 % (SANA)"}
"""MoDM §A.4, measured with Zeus on its GPUs."""
TITLES = {
    "vanilla": "vanilla large",
    "small": "small alone",
    "fewer_steps": f"large with {FEWER_STEPS} steps",
    "nirvana": "latents (ours)",
    "retrieval": "retrieval only",
    "modm_quality": "MoDM, quality mode",
    "modm_throughput": "MoDM, throughput mode",
}
ASSUMPTIONS = (
    "A worker steps its rows together and lets requests join and leave between steps; a step's seconds at every batch "
    "size are the measured ones, linear between them; rows of two models are stepped one model after the other. "
    "Decoding is added, and as much again for encoding an image into a latent. Nothing else takes time: no planning, "
    "no embedding, no storing.",
    "Hits and k are those of bench.trace_plans, in the trace's order and again from its beginning, although this "
    "run's own cache would hold other entries by then. Quality mode uses the decisions of throughput mode.",
    "A request counts only if all earlier requests are served, so that hits are not served at the cost of "
    "misses. Counting begins after the monitor had time to settle.",
    "Both models stay loaded everywhere: a worker that is to switch finishes its rows and takes nothing new meanwhile.",
    "Retrieval returns images in no time.",
    "Energy is stated power times the workers' seconds, not measured: a busy worker takes the same watts with "
    "any model. Nothing besides the workers is counted.",
)


@dataclass(frozen=True)
class Bound:
    """Upper bounds of any allocation's throughput, as multiples of vanilla's."""

    hit_rate: float
    skipped: float
    """s: share of a hit's steps that are skipped."""
    ratio: float
    """r: a small model's full generation over the large one's."""

    @property
    def fractional(self) -> float:
        """1 / ((1 − h) + h·(1 − s)·r)."""
        return 1 / ((1 - self.hit_rate) + self.hit_rate * (1 - self.skipped) * self.ratio)

    def whole(self, workers: int) -> float:
        """Return the bound with whole workers, at least one of them large, and hits on small workers alone.

        With two workers it is the lesser of 1/(2·(1 − h)) and 1/(2·h·(1 − s)·r)."""
        miss_cost, hit_cost = 1 - self.hit_rate, self.hit_rate * (1 - self.skipped) * self.ratio
        splits = (
            min(_over(large, miss_cost), _over(workers - large, hit_cost)) / workers for large in range(1, workers + 1)
        )
        return max(splits)


def _over(workers: int, cost: float) -> float:
    return workers / cost if cost else float("inf")


def bound_of(hits: Hits, speeds: Mapping[str, Profile], rows: int) -> Bound:
    return Bound(hits.rate, hits.share_skipped, speeds[SMALL].share_s(rows) / speeds[LARGE].share_s(rows))


@dataclass(frozen=True)
class Load:
    """The load that every system of one fleet gets."""

    workers: int
    rows: int
    rate: float
    settle_s: float
    until: float
    seed: int
    watts: tuple[float, float] = (BUSY_WATTS, IDLE_WATTS)
    """Power of one worker: busy, idle."""

    def joules_per_request(self, run: Run, per_s: float) -> float:
        """Return the joules of all workers per request at throughput `per_s`, in the measured part."""
        seconds = self.until - self.settle_s
        idle_s = max(self.workers * seconds - run.busy_s, 0.0)
        return stated_joules(run.busy_s, idle_s, *self.watts) / (per_s * seconds)


def run_all(load: Load, speeds: dict[str, Profile], hits: Mapping[str, Hits], rules: Rules) -> dict[str, Run]:
    def arrivals() -> Any:
        return steady(load.rate, load.until, load.seed)

    def alone(plans: Sequence[Any], **more: Any) -> Run:
        return plain(
            arrivals(), plans, speeds, load.workers, load.until, max_rows=load.rows, since=load.settle_s, **more
        )

    def modm(mode: Any) -> Run:
        own = Rules(rules.large, rules.smalls, mode=mode, period_s=rules.period_s, window_s=rules.window_s)
        plans = plans_of(hits["modm"])
        run = Modm(
            arrivals(), plans, speeds, load.workers, own, load.until, max_rows=load.rows, since=load.settle_s
        )  # fmt: skip
        return run()

    return {
        "vanilla": alone([miss(LARGE)]),
        "small": alone([miss(SMALL)], model=SMALL),
        "fewer_steps": alone([miss(LARGE)], steps=FEWER_STEPS),
        "nirvana": alone(plans_of(hits["nirvana"])),
        "retrieval": handed_out(
            arrivals(), hits["retrieval"], speeds, load.workers, load.until, max_rows=load.rows, since=load.settle_s
        ),
        "modm_quality": modm("quality"),
        "modm_throughput": modm("throughput"),
    }  # fmt: skip


def figures_of(load: Load, runs: Mapping[str, Run], bound: Bound) -> dict[str, Any]:
    rates = {name: served_together(run.done, load.settle_s, load.until) for name, run in runs.items()}
    vanilla = rates["vanilla"]
    joules = {name: load.joules_per_request(run, rates[name]) for name, run in runs.items()}
    systems: dict[str, Any] = {}
    for name, run in runs.items():
        late = [one for one in run.done if one.at >= load.settle_s]
        systems[name] = {
            "per_s": rates[name],
            "speedup": rates[name] / vanilla,
            "busy": run.busy_s / (load.workers * (load.until - load.settle_s)),
            "joules_per_request": joules[name],
            "energy_saved": 1 - joules[name] / joules["vanilla"],
            "hits_among_served": sum(one.request.is_hit for one in late) / max(len(late), 1),
            "by_model": dict(Counter(one.model or "nobody" for one in late)),
            "refined_by": dict(Counter(one.model for one in late if one.request.plan.source is PlanSource.IMAGE)),
        }
        if run.decisions:
            last = run.decisions[-1]
            systems[name] |= {
                "large_workers": last.count(LARGE), "mode_at_the_end": last.mode, "switches": run.switches,
                "moved": run.moved, "of_bound": rates[name] / vanilla / bound.fractional,
                "of_whole_bound": rates[name] / vanilla / bound.whole(load.workers),
            }  # fmt: skip
    best = systems["modm_throughput"]
    return {
        "workers": load.workers, "offered_per_s": load.rate, "systems": systems,
        "bound": bound.fractional, "bound_with_whole_workers": bound.whole(load.workers),
        "reaches_the_goal_of_bound": best["of_bound"] >= GOAL_SHARE, "reaches_2_5": best["speedup"] >= GOAL_SPEEDUP,
    }  # fmt: skip


def report(figures: Mapping[str, Any]) -> str:
    def share(one: Mapping[str, Any], key: str) -> str:
        return f"{one[key]:.0%}" if key in one else ""

    rows = [
        [TITLES[name], one["per_s"], f"{one['speedup']:.2f}", share(one, "of_bound"), share(one, "of_whole_bound"),
         one.get("large_workers", ""), one.get("switches", ""), f"{one['joules_per_request']:.1f}",
         f"{one['energy_saved']:.1%}", PAPER_ENERGY_SAVED.get(name, "")]
        for name, one in figures["systems"].items()
    ]  # fmt: skip
    heads = ["system", "requests /s", "× vanilla", "of the bound", "of that with whole workers", "large", "switches",
             "J a request", "energy saved", "the paper's"]  # fmt: skip
    return (
        f"\nN = {figures['workers']}: bound {figures['bound']:.2f}, with whole workers "
        f"{figures['bound_with_whole_workers']:.2f}\n\n{table(heads, rows)}"
    )


SCALED = ("vanilla", "modm_throughput")


def per_worker(fleets: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Return throughput per worker at each N, smallest fleet = 1: above 1 is more than linear scaling."""
    rates = [one["systems"][name]["per_s"] / one["workers"] for one in fleets]
    return [rate / rates[0] for rate in rates]


def scaling(fleets: Sequence[Mapping[str, Any]]) -> str:
    """Return throughput by N as a table (MoDM Fig. 11)."""
    rows = [
        [TITLES[name], *(f"{one['systems'][name]['per_s']:.1f} ({each:.2f})" for one, each in
         zip(fleets, per_worker(fleets, name), strict=True))]
        for name in SCALED
    ]  # fmt: skip
    bounds = [one["bound_with_whole_workers"] / fleets[0]["bound_with_whole_workers"] for one in fleets]
    rows.append(["bound of MoDM with whole workers", *(f"({each:.2f})" for each in bounds)])
    first = fleets[0]["workers"]
    return table([f"requests /s (a worker's, N = {first}: 1)", *(f"N = {one['workers']}" for one in fleets)], rows)


def plot(fleets: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot bars as in MoDM Fig. 7, one group per number of workers, and throughput by N as in MoDM Fig. 11."""
    pyplot = pyplot_or_none()
    if pyplot is None:
        return
    figure, (axes, right) = pyplot.subplots(1, 2, figsize=(12, 4), width_ratios=(2, 1), layout="constrained")
    width = 0.8 / len(fleets)
    for place, one in enumerate(fleets):
        at = [number + width * (place - (len(fleets) - 1) / 2) for number in range(len(TITLES))]
        axes.bar(
            at, [one["systems"][name]["speedup"] for name in TITLES], width, label=f"{one['workers']} workers"
        )  # fmt: skip
        axes.axhline(one["bound_with_whole_workers"], color=f"C{place}", linestyle=":", linewidth=1)
    axes.set_xticks(range(len(TITLES)), [title.replace(", ", "\n") for title in TITLES.values()], fontsize=8)
    axes.set_ylabel("throughput, vanilla = 1 (dotted: bounds of MoDM)")
    axes.legend()
    at = [one["workers"] for one in fleets]
    for name in SCALED:
        rates = [one["systems"][name]["per_s"] for one in fleets]
        right.plot(at, [rate / rates[0] for rate in rates], "o-", label=TITLES[name])
    right.plot(at, [count / at[0] for count in at], "k:", label="linear")
    right.set(xlabel="workers", ylabel=f"throughput, that of {at[0]} workers = 1", xscale="log", yscale="log")
    right.set_xticks(at, [str(count) for count in at])
    right.set_yticks([count / at[0] for count in at], [f"{count / at[0]:g}" for count in at])
    right.minorticks_off()
    right.legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = virtual_command_line(__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--rows", type=int, default=8, help="requests that share a step")
    parser.add_argument("--minutes", type=float, default=30.0, help="minutes of virtual time")
    parser.add_argument("--settle-min", type=float, default=12.0, help="minutes of warm-up, not measured")
    parser.add_argument("--offered", type=float, default=1.3, help="offered load, in capacities of the fastest system")
    parser.add_argument("--watts", type=float, default=BUSY_WATTS, help="watts of a busy worker: stated, not measured")
    parser.add_argument(
        "--idle-watts", type=float, default=IDLE_WATTS, help="watts of an idle worker: stated, not measured"
    )
    given = parser.parse_args(arguments)
    on, speeds = machine(), bundled_speeds()
    hits = {name: load_hits(name, given.plans) for name in ("modm", "nirvana", "retrieval")}
    bound = bound_of(hits["modm"], speeds, given.rows)
    rules = Rules(LARGE, (SMALL,), period_s=given.period_s, window_s=max(given.period_s, 60.0))
    fleets = []
    for workers in given.workers:
        fastest = max(1 / speeds[SMALL].share_s(given.rows), 1 / speeds[LARGE].share_s(given.rows, FEWER_STEPS))
        rate = given.offered * workers * fastest
        watts = (given.watts, given.idle_watts)
        load = Load(workers, given.rows, rate, 60 * given.settle_min, 60 * given.minutes, given.seed, watts)
        fleets.append(figures_of(load, run_all(load, speeds, hits, rules), bound))
        print(report(fleets[-1]), flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    plot(fleets, given.out / "two_models.png")
    measured = {"hit_rate": bound.hit_rate, "share_skipped": bound.skipped, "cost_ratio": bound.ratio}
    print("\n" + scaling(fleets) + "\n\n" + ", ".join(f"{name} {value:.3f}" for name, value in measured.items()))
    settings = {**settings_of(given), "assumptions": ASSUMPTIONS}
    record("two_models", {**measured, "fleets": fleets}, settings, on=on, folder=given.out)


if __name__ == "__main__":
    main()
