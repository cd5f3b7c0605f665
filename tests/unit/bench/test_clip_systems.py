"""The figures of bench.clip_systems: what counts as copying and as variety, and T of few steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.clip_systems import SYSTEMS, Work, copying, figures_of, report, variety, with_fig_10
from bench.measuring.clip_figures import READ
from load.sessions import SHIPPED_CLIPS, read_trace
from shared.models import find_card
from shared.models.k_table import FIG_10
from shared.models.tables_in_force import shipped_table
from shared.runtime.settings import Settings

RNG = np.random.default_rng(0)
CLIPS = [RNG.integers(0, 256, (2, 8, 8, 3), dtype=np.uint8) for _ in range(4)]
ROWS = [replace(row, prompt=prompt) for row, prompt in zip(read_trace(SHIPPED_CLIPS)[:4], "abba", strict=True)]


def work(folder: Path, clips: Any = CLIPS, **last: Any) -> Work:
    """Return four clips from noise; last: what differs in the answer of the last one."""
    found = Work(folder, 4)
    for index, clip in enumerate(clips):
        answer = {"index": index, "job": f"job {index}", "source": "noise", "start": 0, "steps_run": 10, "sources": []}
        found.keep(answer | (last if index == 3 else {}), clip)
    return found


def verdict(features: list[float], ok: bool = True) -> dict[str, Any]:
    return {"clip": 0.5, "smooth": 0.9, "features": [*features, 0.0, 0.0], "right": dict.fromkeys(READ, ok)}


def test_a_clip_that_shows_its_source_copies_it(tmp_path: Path) -> None:
    without = work(tmp_path / "none")
    hit = {"source": "latent", "start": 2, "steps_run": 8, "sources": ["job 0"]}
    same = copying(work(tmp_path / "same", [*CLIPS[:3], CLIPS[0]], **hit), without)
    own = copying(work(tmp_path / "own", **hit), without)
    assert same is not None
    assert own is not None
    assert same["started"] == own["started"] == 1
    assert same["more"][0] > 0.9
    assert own["more"][0] == 0.0
    assert copying(without, without) is None


def test_variety_is_of_clips_of_one_prompt_that_were_generated(tmp_path: Path) -> None:
    verdicts = [verdict([1.0, 0.0]), verdict([0.0, 1.0]), verdict([0.0, 1.0]), verdict([0.0, 1.0])]
    answers = work(tmp_path / "some").answers()
    assert variety(ROWS, verdicts, answers) == {"a": pytest.approx(1.0), "b": pytest.approx(0.0)}
    answers[3]["source"] = "exact"
    assert set(variety(ROWS, verdicts, answers)) == {"b"}


def test_each_system_is_compared_with_no_cache(tmp_path: Path) -> None:
    works = {one.name: work(tmp_path / one.name) for one in SYSTEMS}
    plain = [verdict(list(map(float, RNG.random(2)))) for _ in ROWS]
    verdicts = {one.name: plain for one in SYSTEMS} | {"flexcache": [verdict([0.2, 0.1], ok=False), *plain[1:]]}
    found = figures_of(works, verdicts, ROWS)
    assert found["none"]["farther"][0] == 0.0
    assert found["flexcache"]["farther"][0] != 0.0
    assert found["flexcache"]["more_right"]["motion"][0] == -0.25
    assert found["nirvana"]["variety"][0] == 1.0
    lines = report(found).splitlines()
    assert all(sum(line.startswith(f"| {one.title} ") for line in lines) == 1 for one in SYSTEMS[1:])


def test_the_settings_of_every_system_are_valid() -> None:
    found = {one.name: Settings(video="bundled:motion", **one.settings) for one in SYSTEMS}
    assert found["nirvana"].reuse_bound == "nirvana"
    assert found["flexcache"].keyframe_least == 0.0


def test_the_papers_systems_take_the_papers_table_alone(tmp_path: Path) -> None:
    card = find_card("bundled:motion")
    copy = find_card(with_fig_10(card, tmp_path / "model"))
    assert copy.weights_hash == card.weights_hash
    (name,) = [path.name for path in copy.folder.glob("*k_table_*")]
    asked = Settings(**SYSTEMS[2].settings)
    table = shipped_table(copy, asked.k_table_alpha)
    assert table is not None
    assert (table.levels, table.assumed, name) == (FIG_10.levels, True, "k_table_0.9.json")


def test_a_killed_run_leaves_no_half_answer(tmp_path: Path) -> None:
    work(tmp_path)
    with (tmp_path / "answers.jsonl").open("a") as file:
        file.write('{"index": 4, "jo')
    again = Work(tmp_path, 9)
    again.keep({"index": 5}, CLIPS[0])
    assert sorted(again.answers()) == [0, 1, 2, 3, 5]
