"""Ablation of layout, reuse between steps and scheduler: alone and together, with and without hits from the cache.

    python -m bench.virtual_time.ablation

Virtual time as in `bench.virtual_time.deadlines`. Reuse shortens a step by the mean over the sizes that
`bench.step_reuse` measured for each layout, with N and the output's change of the forest that ships. A hit skips 10 to
50 % of its steps; its deadline is that of a miss.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.measuring.recording import command_line, machine, record, settings_of, table
from bench.virtual_time.deadlines import COMMON, MET, judged, load_allowed, serve
from bench.virtual_time.fleet import System, Worker, arrivals, by_arrival, by_slack
from shared.models import find_card

LOADS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
REUSE = Path(__file__).parents[1] / "results" / "step_reuse_t50.json"
WAYS = {"groups": "images", "patches": "patches"}
"""Layout → its way of reuse in the results of `bench.step_reuse`."""


def step_time(layout: str) -> float:
    """Return the time of a step with reuse; 1: the same step that compares all inputs and computes all blocks. So the
    cut into patches, which costs nothing here, counts on neither side."""
    sizes = json.loads(REUSE.read_text())["figures"][layout]["sizes"].values()
    return fmean(one["ways"][WAYS[layout]]["step_ms"] / one["ways"]["nothing"]["step_ms"] for one in sizes)


def systems() -> list[System]:
    """Return each part alone, all together, and all without one: groups, no reuse, first come first served."""
    groups, patches = step_time("groups"), step_time("patches")
    urgent: Any = {"policy": by_slack, "take": "urgent"}
    none = System("none", by_arrival, patches=False)
    return [
        none,
        replace(none, name="layout", patches=True),
        replace(none, name="reuse", step_time=groups),
        replace(none, name="scheduler", **urgent),
        replace(none, name="all", patches=True, step_time=patches, **urgent),
        replace(none, name="all but layout", step_time=groups, **urgent),
        replace(none, name="all but reuse", patches=True, **urgent),
        replace(none, name="all but scheduler", patches=True, step_time=patches),
    ]


def measure(worker: Worker, workers: int, hits: float, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the share of deadlines met by system: at each load, their mean, and the load that allows each of MET."""
    levels: list[dict[str, Any]] = []
    for load in options.loads:
        level: dict[str, Any] = {"load": load, "systems": {}}
        for system in systems():
            met = []
            for seed in range(1, max(options.seeds // workers, 1) + 1):
                asked = list(arrivals(worker, load, options.count * workers, seed, workers, hits=hits))
                served = serve(worker, system, asked, drop=True, seed=seed, workers=workers)
                met.append(judged(worker, asked, served)["met"])
            level["systems"][system.name] = {"met": fmean(met)}
        levels.append(level)
    return {
        system.name: {
            "met": [level["systems"][system.name]["met"] for level in levels],
            "mean": fmean(level["systems"][system.name]["met"] for level in levels),
            "load_allowed": {f"{least:g}": load_allowed(levels, system.name, least) for least in MET},
        }
        for system in systems()
    }


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--model", default="bundled:large")
    parser.add_argument("--rows", type=int, default=8, help="most requests in a step")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--count", type=int, default=150, help="requests of each worker at each load and seed")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--loads", type=float, nargs="+", default=list(LOADS), help="shares of the capacity")
    parser.add_argument("--seeds", type=int, default=8, help="runs with one worker; half as many with twice")
    parser.add_argument("--hits", type=float, nargs="+", default=[0.0, 0.5], help="shares of requests that hit")
    options = parser.parse_args(given)
    worker, on = Worker(find_card(options.model), options.rows, options.steps), machine()
    figures: dict[str, Any] = {"step_time": {layout: step_time(layout) for layout in WAYS}, "workers": {}}
    for workers in options.workers:
        of = figures["workers"][str(workers)] = {
            f"{hits:g}": measure(worker, workers, hits, options) for hits in options.hits
        }
        for hits, found in of.items():
            print(f"\nworkers: {workers}; hits: {float(hits):.0%}\n")
            print(
                table(
                    ["parts", *(f"{load:g}" for load in options.loads), "mean", *(f"{least:.0%}" for least in MET)],
                    _rows(found),
                )
            )
    record("ablation", figures, {**settings_of(options), "assumptions": COMMON}, on=on, folder=options.out)


def _rows(found: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    return [
        [name, *(f"{100 * met:.1f}" for met in one["met"]), f"{100 * one['mean']:.1f}",
         *(f"{load:.2f}" for load in one["load_allowed"].values())]
        for name, one in found.items()
    ]  # fmt: skip


if __name__ == "__main__":
    main()
