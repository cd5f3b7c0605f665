"""Goodput of an overloaded service: first its capacity, then loads of 1, 2 and 3 times the capacity.

    python -m bench.overload                      (cluster and one process, 13 minutes)
    python -m bench.overload --modes embedded --large bundled:small

Locust sends the load. A closed loop of users who send again at once finds the capacity. Then an open loop offers
Poisson arrivals (load/arrivals.py), independent of earlier answers; refused users do not return. Every round measures
all levels, so other load on the machine affects all levels equally. Goodput counts the images that arrive within a
level's window, after the queue had time to fill. The denoiser waits a known time a step and size and needs no
processor, like one on a GPU. `--large` uses a real one on the same cores. The cache is off, so every image costs the
same.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, quantile, record, table
from bench.serving.processes import ROOT, cpu_of, cpu_seconds, one_process, scratch, servers_on_path, spent
from scripts.stack.stack import Stack, missing

GOAL = 0.9
"""Smallest accepted goodput at three times the capacity, as a share of the peak."""
REFUSED = "RESOURCE_EXHAUSTED"
CLOSED = 0.0
"""Multiple that stands for the closed loop."""


@dataclass(frozen=True)
class Target:
    """A running service: its address, and the processor seconds of its processes so far."""

    host: str
    cpu: Callable[[], dict[str, float]]


@contextlib.contextmanager
def embedded(settings: dict[str, Any], folder: Path) -> Iterator[Target]:
    """Run everything in one process."""
    with one_process(settings, folder) as server:
        yield Target(server.url, lambda: cpu_seconds({"one process": server.pid}))


@contextlib.contextmanager
def cluster(settings: dict[str, Any], folder: Path) -> Iterator[Target]:
    """Run two gateways and one worker over real servers, each service in its own process."""
    with Stack(folder, replicas={"gateway": 2}, settings=settings) as stack:
        yield Target(",".join(stack.gateways), lambda: cpu_of(stack))


MODES = {"embedded": embedded, "cluster": cluster}


def locust(target: Target, folder: Path, duration_s: float, options: Sequence[str]) -> list[dict[str, Any]]:
    """Run Locust headless and return every call."""
    calls = folder / "calls.jsonl"
    calls.unlink(missing_ok=True)
    command = [sys.executable, "-m", "locust", "-f", "load/locustfile.py", "--headless", "--host", target.host]
    kept = ["--only-summary", "-t", f"{round(duration_s)}s", "--record", str(calls)]
    done = subprocess.run([*command, *kept, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    if not calls.exists():
        raise RuntimeError(f"locust recorded nothing:\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in calls.read_text().splitlines()]


def level(calls: Sequence[dict[str, Any]], warm_s: float, window_s: float) -> dict[str, Any]:
    """Summarise the calls of one run within the window that begins `warm_s` after the first call."""
    begin = min(call["at"] for call in calls) + warm_s
    asked = [call for call in calls if begin <= call["at"] < begin + window_s]
    ended = [call for call in calls if begin <= call["at"] + call["seconds"] < begin + window_s]
    drawn = [call for call in ended if call["kind"] in ("hit", "miss", "exact")]
    refused = [call for call in ended if call["name"] == REFUSED]
    others = {call["name"] for call in ended if call["kind"] == "failed"} - {REFUSED}
    return {
        "asked_per_s": len(asked) / window_s,
        "goodput_per_s": len(drawn) / window_s,
        "refused_per_s": len(refused) / window_s,
        "other_failures": {name: sum(call["name"] == name for call in ended) for name in sorted(others)},
        "picture_p50_s": quantile([call["seconds"] for call in drawn], 0.5),
        "picture_p99_s": quantile([call["seconds"] for call in drawn], 0.99),
        "refusal_p50_ms": quantile([call["seconds"] * 1000 for call in refused], 0.5),
        "refusal_p99_ms": quantile([call["seconds"] * 1000 for call in refused], 0.99),
        "refused_without_a_delay": sum(not call["delay_s"] for call in refused),
        "delay_p50_s": quantile([call["delay_s"] for call in refused if call["delay_s"]], 0.5),
        "asked_late_p99_ms": quantile([call["late_s"] * 1000 for call in asked], 0.99),
    }


def measured(
    target: Target, folder: Path, options: argparse.Namespace, multiple: float, rate: float, seed: int
) -> dict[str, Any]:
    """Measure one level: the closed loop for `multiple` 0, otherwise `rate` requests a second."""
    if multiple == CLOSED:
        how = ["-u", str(options.users), "-r", str(options.users), "--speed", "1e6"]
    else:
        how = ["--arrivals", f"poisson:{rate:.4f}", "--seed", str(seed)]
        how += ["--patience-s", str(options.patience_s)]
    how += ["--cache", "off", "--steps", str(options.steps)]
    begun, before, mine = time.monotonic(), target.cpu(), _children_s()
    calls = locust(target, folder, options.warm_s + options.window_s + 1.0, how)
    found = level(calls, options.warm_s, options.window_s)
    cpu = {**spent(before, target.cpu()), "locust": _children_s() - mine}
    seconds = time.monotonic() - begun
    return {"multiple": multiple, **found, "cores": {name: used / seconds for name, used in cpu.items()}}


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def rounds_of(target: Target, folder: Path, options: argparse.Namespace) -> list[list[dict[str, Any]]]:
    rounds = []
    for number in range(options.rounds):
        closed = measured(target, folder, options, CLOSED, 0.0, 0)
        capacity = closed["goodput_per_s"]
        print(f"round {number + 1}: capacity {capacity:.2f} images a second", flush=True)
        levels = [closed]
        for multiple in options.multiples:
            levels.append(measured(target, folder, options, multiple, multiple * capacity, options.seed + number))
            print(f"  offered {multiple:g}×: {levels[-1]['goodput_per_s']:.2f}", flush=True)
        rounds.append(levels)
    return rounds


def summary(rounds: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Return means over the rounds by level.

    `of_peak` is the mean goodput divided by the highest mean goodput. `of_possible` divides by the highest mean goodput
    or by the offered load, whichever is less: at 1× the random arrivals may be fewer than the capacity. The goal
    applies from 1× upwards."""
    levels = []
    for same in zip(*rounds, strict=True):
        number = {
            key: fmean(one[key] for one in same)
            for key, value in same[0].items()
            if isinstance(value, float) and key != "multiple"
        }
        failures = {name for one in same for name in one["other_failures"]}
        levels.append(
            number
            | {
                "multiple": same[0]["multiple"],
                "refused_without_a_delay": sum(one["refused_without_a_delay"] for one in same),
                "other_failures": {name: sum(one["other_failures"].get(name, 0) for one in same) for name in failures},
                "goodput_by_round": [one["goodput_per_s"] for one in same],
                "cores": {name: fmean(one["cores"].get(name, 0.0) for one in same) for name in same[0]["cores"]},
            }
        )
    peak = max(one["goodput_per_s"] for one in levels)
    for one in levels:
        one["of_peak"] = one["goodput_per_s"] / peak
        one["of_possible"] = one["goodput_per_s"] / min(peak, one["asked_per_s"])
    worst = min((one["of_possible"] for one in levels if one["multiple"] >= 1), default=float("nan"))
    return {
        "levels": levels,
        "peak_per_s": peak,
        "worst_of_possible": worst,
        "goal": GOAL,
        "met": worst >= GOAL,
    }


def report(mode: str, found: dict[str, Any]) -> str:
    rows = [
        [
            "closed loop" if one["multiple"] == CLOSED else f"{one['multiple']:g}×",
            *(one[key] for key in ("asked_per_s", "goodput_per_s")),
            f"{one['of_peak']:.0%}",
            f"{one['of_possible']:.0%}",
            *(one[key] for key in ("refused_per_s", "picture_p50_s", "picture_p99_s")),
            f"{one['refusal_p50_ms']:.1f} / {one['refusal_p99_ms']:.0f}",
            one["delay_p50_s"],
            f"{sum(used for name, used in one['cores'].items() if name != 'locust'):.2f}",
        ]
        for one in found["levels"]
    ]
    heads = ["offered", "requests /s", "images /s", "of the peak", "of the possible", "refused /s", "image p50 s",
             "p99 s", "refusal p50 / p99 ms", "its delay s", "cores"]  # fmt: skip
    worst = f"worst from 1× on: {found['worst_of_possible']:.1%} of the possible; goal {GOAL:.0%}: "
    failed = [name for one in found["levels"] for name in one["other_failures"]]
    return f"\n{mode}\n\n{table(heads, rows)}\n\n{worst}{'met' if found['met'] else 'missed'}" + (
        f"; other failures: {', '.join(sorted(set(failed)))}" if failed else ""
    )


def plot(found: dict[str, dict[str, Any]], path: Path) -> None:
    """Plot goodput against offered load, both in capacities; do nothing if matplotlib is not installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        print("no plot: matplotlib is not installed")
        return
    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 4.0), layout="constrained")
    for mode, one in found.items():
        open_loop = [each for each in one["levels"] if each["multiple"] != CLOSED]
        capacity = one["levels"][0]["goodput_per_s"]
        (line,) = axes.plot(
            [each["asked_per_s"] / capacity for each in open_loop],
            [each["goodput_per_s"] / one["peak_per_s"] for each in open_loop],
            marker="o",
            label=f"{mode}: peak {one['peak_per_s']:.1f} images a second",
        )
        for each in open_loop:
            rounds = [value / one["peak_per_s"] for value in each["goodput_by_round"]]
            axes.plot([each["asked_per_s"] / capacity] * len(rounds), rounds, ".", color=line.get_color(), alpha=0.5)
    axes.axhline(GOAL, color="grey", linestyle=":", label="goal")
    axes.set(xlabel="offered load, in capacities", ylabel="goodput, of its peak", ylim=(0, 1.1), xlim=(0, None))
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    print(f"wrote {path}")


def measure(options: argparse.Namespace) -> None:
    on = machine()
    large = options.large or f"noop:?step_ms={options.step_ms:g}"
    settings = {"large": large, "max_rows": options.max_rows, "max_queued": options.max_queued, "log_level": "error"}
    found: dict[str, Any] = {}
    for mode in options.modes:
        with scratch() as folder, MODES[mode](settings, folder) as target:
            rounds = rounds_of(target, folder, options)
        found[mode] = {**summary(rounds), "rounds": rounds}
        print(report(f"{mode}, {large}", found[mode]), flush=True)
    kept = {key: str(value) for key, value in vars(options).items() if key != "out"} | {"large": large}
    after = {"load_1min_after": round(os.getloadavg()[0], 2)}
    print(f"load {on['load_1min']} before, {after['load_1min_after']} after")
    record("overload", found, kept, on={**on, **after}, folder=options.out)
    plot(found, options.out / "overload.png")


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=["cluster", "embedded"])
    parser.add_argument(
        "--multiples", nargs="+", type=float, default=[0.5, 1.0, 2.0, 3.0], help="multiples of the capacity"
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--warm-s", type=float, default=8.0, help="warm-up seconds of every level, not measured")
    parser.add_argument("--window-s", type=float, default=30.0, help="measured seconds of every level")
    parser.add_argument("--users", type=int, default=24, help="users of the closed loop; more than the worker has rows")
    parser.add_argument("--step-ms", type=float, default=8.0, help="milliseconds per step of the waiting denoiser")
    parser.add_argument(
        "--large", default="", help="a real model in place of the waiting denoiser: bundled:NAME, a folder or a hub id"
    )
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--max-rows", type=int, default=8)
    parser.add_argument("--max-queued", type=int, default=32)
    parser.add_argument(
        "--patience-s", type=float, default=0.0, help="seconds for which a refused user tries again; 0: never"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the arrivals")
    options = parser.parse_args(given)
    servers_on_path()
    if "cluster" in options.modes and (said := missing({})):
        print("overload: without the cluster; " + "; ".join(said))
        options.modes = [mode for mode in options.modes if mode != "cluster"]
    if options.users >= options.max_rows + options.max_queued:
        parser.error(f"--users: must be below --max-rows + --max-queued, so that none is refused (got {options.users})")
    quiet()
    measure(options)


if __name__ == "__main__":
    main()
