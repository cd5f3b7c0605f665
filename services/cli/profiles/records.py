"""The records of rows.jsonl: measured pair by pair, resumed from an earlier run, and converted to profile rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
    from services.retriever.profile import ProfileRow

AT_A_TIME = 8
"""Pairs that share batches; a killed run loses at most this many."""
LEAST_SCORE = 0.01
"""Least mean CLIP score of images from noise; below it a quality ratio is meaningless."""


def measure_records(
    profiler: Profiler, about: dict[str, Any], pairs: int, out: Path, console: Console
) -> list[dict[str, Any]]:
    """Return all pairs' records, those of earlier runs first; each chunk is on disk before the next one starts.

    The images of the first pair of each kind are written to `images/`, for the report.
    """
    from services.cli.profiles.pairs import scene_pairs
    from services.cli.profiles.report import keep_images

    path = out / "rows.jsonl"
    done = _resumed(path, about)
    numbers = {record["pair"] for record in done}
    wanted = list(scene_pairs(pairs, about["seed"]))
    missing = (pair for pair in wanted if pair.number not in numbers)
    with shown(console) as bar, path.open("a", encoding="utf-8") as file:
        if not done and not path.stat().st_size:
            file.write(json.dumps(about) + "\n")
        steps = {pair.number: profiler.steps_of(pair) for pair in wanted}
        advance = bar("denoising steps", sum(steps.values()), sum(steps[n] for n in numbers if n in steps))
        for chunk in _chunks(missing):
            records = list(profiler.measure(chunk, lambda: advance(1), partial(keep_images, out / "images")))
            file.write("".join(json.dumps(record) + "\n" for record in records))
            file.flush()
            done += records
    return [record for record in done if record["pair"] < pairs]


def _resumed(path: Path, about: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the records of earlier runs with the same settings; drop a line that a killed run left incomplete."""
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
    whole = [record for record in records if of_pair[record["pair"]] == len(about["ks"])]
    path.write_text(lines[0] + "".join(json.dumps(record) + "\n" for record in whole), encoding="utf-8")
    return whole


def _chunks(pairs: Iterator[Any]) -> Iterator[list[Any]]:
    while chunk := list(islice(pairs, AT_A_TIME)):
        yield chunk


def profile_rows(records: Sequence[Mapping[str, Any]]) -> list[ProfileRow]:
    from services.cli.profiles.measure import profile_row

    rows = [profile_row(record) for record in records]
    if fmean(row.score_from_noise for row in rows) < LEAST_SCORE:
        raise ConfigurationError(
            f"images from noise score below {LEAST_SCORE} in CLIP on average: check the encoder, or train the models"
        )
    return rows
