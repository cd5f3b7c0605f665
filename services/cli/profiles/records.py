"""The records of rows.jsonl: measured pair by pair, resumed from an earlier run, and converted to profile rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.console import Console

from shared.domain.errors import ConfigurationError
from shared.runtime.progress import shown

if TYPE_CHECKING:  # torch is imported when a profile runs, not when --help is read
    from services.cli.profiles.measure import Profiler
    from services.cli.profiles.pairs import ScenePair
    from services.retriever.profile import ProfileRow

AT_A_TIME = 8
"""Pairs that share batches; a killed run loses at most this many."""
LEAST_SCORE = 0.01
"""Least mean CLIP score of images from noise; below it a quality ratio is meaningless."""


@dataclass
class Run:
    """One T of a profile, with its folder and records."""

    profiler: Profiler
    about: dict[str, Any]
    """First line of rows.jsonl: the properties that the records depend on."""
    folder: Path
    records: list[dict[str, Any]] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.folder / "rows.jsonl"


def measure_records(runs: Sequence[Run], pairs: int, further: int, console: Console) -> None:
    """Measure the pairs that earlier runs did not, and leave all pairs' records in `runs`.

    Each chunk is on disk before the next one starts. All T of a chunk share its references. The images of the first
    pair of each kind are written to `images/`, for the report.
    """
    from services.cli.profiles.report import keep_images

    wanted = {pair.number: pair for pair in runs[0].profiler.pairs(pairs, further, runs[0].about["seed"])}
    done = []
    for run in runs:
        run.records = _resumed(run)
        done.append({record["pair"] for record in run.records})
        if not run.path.exists() or not run.path.stat().st_size:
            run.path.write_text(json.dumps(run.about) + "\n", encoding="utf-8")
    missing = _mixed([pair for number, pair in wanted.items() if any(number not in numbers for numbers in done)])
    with shown(console) as bar:
        steps = [  # all T share the reference
            {number: run.profiler.steps_of(pair, reference=n == 0) for number, pair in wanted.items()}
            for n, run in enumerate(runs)
        ]
        begun = sum(of[n] for of, numbers in zip(steps, done, strict=True) for n in numbers if n in of)
        advance = bar("denoising steps", sum(sum(of.values()) for of in steps), begun)
        for chunk in _chunks(iter(missing)):
            references: dict[str, Any] = {}
            for run, numbers in zip(runs, done, strict=True):
                own = [pair for pair in chunk if pair.number not in numbers]
                keep = partial(keep_images, run.folder / "images")
                records = list(run.profiler.measure(own, lambda: advance(1), keep, references)) if own else []
                with run.path.open("a", encoding="utf-8") as file:
                    file.write("".join(json.dumps(record) + "\n" for record in records))
                run.records += records
    for run in runs:
        run.records = [record for record in run.records if record["pair"] in wanted]


def _mixed(pairs: Sequence[ScenePair]) -> list[ScenePair]:
    """Return the pairs with those of the further kinds spread evenly, so that an unfinished run has all kinds."""
    from services.cli.profiles.pairs import FURTHER

    of_kind = Counter(pair.kind in FURTHER for pair in pairs)
    place: Counter[bool] = Counter()
    keys = []
    for pair in pairs:
        ours = pair.kind in FURTHER
        place[ours] += 1
        keys.append((place[ours] / of_kind[ours], pair.number))
    return [pair for _, pair in sorted(zip(keys, pairs, strict=True), key=lambda one: one[0])]


def _resumed(run: Run) -> list[dict[str, Any]]:
    """Return the records of earlier runs with the same settings; drop a line that a killed run left incomplete."""
    path, about = run.path, run.about
    if not path.exists() or not path.stat().st_size:
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    # rows from before half precision have no dtype
    unsaid = {name: "float32" for name in about if name.endswith("dtype")}
    if unsaid | json.loads(lines[0]) != about:
        raise ConfigurationError(
            f"{path}: was measured with other settings; move the file away, or choose another --out"
        )
    records = [json.loads(line) for line in lines[1:] if line.endswith("\n")]
    of_pair = Counter(record["pair"] for record in records)
    whole = [record for record in records if of_pair[record["pair"]] == len(run.profiler.measured)]
    path.write_text(lines[0] + "".join(json.dumps(record) + "\n" for record in whole), encoding="utf-8")
    return whole


def _chunks(pairs: Iterator[Any]) -> Iterator[list[Any]]:
    while chunk := list(islice(pairs, AT_A_TIME)):
        yield chunk


def of_tables(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records that K tables are built from: starts of pairs that differ in one known way."""
    from services.cli.profiles.pairs import FURTHER

    return [record for record in records if record["k"] and record["kind"] not in FURTHER]


def profile_rows(records: Sequence[Mapping[str, Any]]) -> list[ProfileRow]:
    from services.cli.profiles.measure import profile_row

    rows = [profile_row(record) for record in records]
    if not rows:
        raise ConfigurationError("no pair could be measured: the segmenter found no masks in any; name another one")
    if fmean(row.score_from_noise for row in rows) < LEAST_SCORE:
        raise ConfigurationError(
            f"images from noise score below {LEAST_SCORE} in CLIP on average: check the encoder, or train the models"
        )
    return rows
