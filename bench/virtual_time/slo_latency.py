"""Late answers and tail latency against the rate of requests, in virtual time (MoDM Figs. 12, 13, 16).

    python -m bench.virtual_time.slo_latency

An answer is late beyond 2 or 4 times the large model's latency for one request alone. Vanilla, our latents and MoDM get
the same Poisson arrivals. Latencies, hits and decisions are those of bench.virtual_time.two_models (see ASSUMPTIONS
there). Workers of one row are the paper's: they generate one image at a time. Workers of eight rows share a step, which
serves more requests and takes longer for each.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.measuring.plotting import pyplot_or_none
from bench.measuring.recording import machine, quantile, record, settings_of, table, virtual_command_line
from bench.trace_plans import load_hits
from bench.virtual_time.two_models import ASSUMPTIONS as SHARED
from bench.virtual_time.virtual_systems import LARGE, SMALL, Modm, bundled_speeds, miss, plain, plans_of, steady
from services.global_monitor.decision import Rules
from services.replay.simulated.pace import Profile
from services.replay.simulated.worker_state import Done
from shared.domain.types import Plan

LATE = (2.0, 4.0)
"""Limits of lateness, in latencies of the large model alone."""
RATES = (0.4, 0.8, 1.0, 1.2, 1.6, 2.2, 3.0, 3.6, 4.2)
"""Offered rates, in units of vanilla's capacity."""
TITLES = {"vanilla": "vanilla large", "nirvana": "latents (ours)", "modm": "MoDM"}
ASSUMPTIONS = (
    *SHARED[:2],
    "Both models stay loaded everywhere: a worker that is to switch finishes its rows and takes nothing new meanwhile.",
    "Only requests are counted that arrive after the monitor had time to settle, and long enough before the end to be "
    "served. A request not served by the end is late; its latency is the time that it has waited.",
)


def judged(done: Sequence[Done], offered: Mapping[int, float], until: float, alone_s: float) -> dict[str, float]:
    """Summarise lateness; `offered` maps counted requests to arrivals, `alone_s` is the large model's time for one."""
    ended = {one.request.number: one.at for one in done}
    seconds = [ended.get(number, until) - at for number, at in offered.items()]
    found = {"seconds_p50": quantile(seconds, 0.5), "seconds_p99": quantile(seconds, 0.99)}
    unserved = [number not in ended for number in offered]
    for factor in LATE:
        late = sum(
            gone or taken > factor * alone_s for taken, gone in zip(seconds, unserved, strict=True)
        )  # fmt: skip
        found[f"late_{factor:g}x"] = late / max(len(seconds), 1)
    return found


def level(
    rate: float, workers: int, rows: int, plans: Mapping[str, Sequence[Plan]], speeds: dict[str, Profile],
    given: argparse.Namespace,
) -> dict[str, dict[str, float]]:  # fmt: skip
    until, settle, alone_s = 60 * given.minutes, 60 * given.settle_min, speeds[LARGE].alone_s()
    rules = Rules(LARGE, (SMALL,), mode=given.mode, period_s=given.period_s, window_s=max(given.period_s, 60.0))

    def arrivals() -> Any:
        return steady(rate, until, given.seed)

    counted = {number: at for number, at in arrivals() if settle <= at < until - 2 * max(LATE) * alone_s}
    served: dict[str, list[Done]] = {
        name: plain(arrivals(), plans[name], speeds, workers, until, max_rows=rows).done
        for name in ("vanilla", "nirvana")
    }
    served["modm"] = Modm(arrivals(), plans["modm"], speeds, workers, rules, until, max_rows=rows)().done
    return {name: judged(done, counted, until, alone_s) for name, done in served.items()}


def highest_within(levels: Sequence[Mapping[str, Any]], name: str, key: str, share: float = 0.05) -> float:
    """Return the highest offered rate up to which at most this share of answers is late, in vanilla's capacity."""
    found = 0.0
    for one in levels:
        if one["systems"][name][key] > share:
            break
        found = one["offered"]
    return found


def report(fleet: Mapping[str, Any]) -> str:
    heads = ["offered (vanilla's most = 1)", *(
        f"{TITLES[name]}: {what}" for name in TITLES for what in ("late 2×", "late 4×", "p99 s")
    )]  # fmt: skip
    rows = [
        [one["offered"], *(
            value for name in TITLES for value in (
                f"{one['systems'][name]['late_2x']:.1%}", f"{one['systems'][name]['late_4x']:.1%}",
                one["systems"][name]["seconds_p99"],
            )
        )]
        for one in fleet["levels"]
    ]  # fmt: skip
    kept = ", ".join(
        f"{TITLES[name]} {fleet['held'][name]['late_2x']:g} / {fleet['held'][name]['late_4x']:g}" for name in TITLES
    )
    return (
        f"\n{fleet['workers']} workers of {fleet['rows']} row(s)\n\n{table(heads, rows)}\n\n"
        f"highest rate with at most 5 % late at 2× / 4×: {kept}"
    )


def plot(fleets: Sequence[Mapping[str, Any]], path: Path) -> None:
    pyplot = pyplot_or_none()
    if pyplot is None:
        return
    figure, panels = pyplot.subplots(
        len(fleets), 3, figsize=(12, 2.9 * len(fleets)), layout="constrained", squeeze=False
    )  # fmt: skip
    keys = (("late_2x", "late beyond 2×"), ("late_4x", "late beyond 4×"), ("seconds_p99", "p99, s"))
    for row, fleet in zip(panels, fleets, strict=True):
        for axes, (key, label) in zip(row, keys, strict=True):
            for name, title in TITLES.items():
                values = [one["systems"][name][key] for one in fleet["levels"]]
                axes.plot([one["offered"] for one in fleet["levels"]], values, marker="o", markersize=3, label=title)
            axes.set(ylabel=label, xlabel="offered, vanilla's most = 1")
            if key == "seconds_p99":
                axes.set_yscale("log")
        row[0].set_title(f"{fleet['workers']} workers of {fleet['rows']} row(s)", fontsize=9)
    panels[0][0].legend(fontsize=8)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = virtual_command_line(__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8], help="requests that share a step")
    parser.add_argument(
        "--rates", type=float, nargs="+", default=list(RATES), help="offered rates, in vanilla's capacity"
    )
    parser.add_argument("--minutes", type=float, default=20.0, help="minutes of virtual time")
    parser.add_argument("--settle-min", type=float, default=10.0, help="minutes of warm-up, not measured")
    parser.add_argument("--mode", choices=("quality", "throughput"), default="throughput")
    given = parser.parse_args(arguments)
    on, speeds = machine(), bundled_speeds()
    plans: dict[str, Sequence[Plan]] = {name: plans_of(load_hits(name, given.plans)) for name in ("modm", "nirvana")}
    plans["vanilla"] = [miss(LARGE)]
    fleets = []
    for rows in given.rows:
        for workers in given.workers:
            most = workers / speeds[LARGE].share_s(rows)
            levels = [
                {"offered": one, "per_s": one * most,
                 "systems": level(one * most, workers, rows, plans, speeds, given)}
                for one in given.rates
            ]  # fmt: skip
            held = {name: {key: highest_within(levels, name, key) for key in ("late_2x", "late_4x")} for name in TITLES}
            fleets.append(
                {"workers": workers, "rows": rows, "vanilla_per_s": most, "levels": levels, "held": held}
            )  # fmt: skip
            print(report(fleets[-1]), flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    plot(fleets, given.out / "slo_latency.png")
    settings = {**settings_of(given), "assumptions": ASSUMPTIONS}
    record(
        "slo_latency", {"large_alone_s": speeds[LARGE].alone_s(), "fleets": fleets}, settings, on=on, folder=given.out
    )


if __name__ == "__main__":
    main()
