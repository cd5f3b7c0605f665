"""FlexCache's figures: of decisions that are counted by hand, and of a tiny run of the whole program."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.replays import clip_equal, clip_replays
from bench.replays import clip_figures as figures
from services.replay.results.figures import Run
from services.replay.simulated.decisions import nothing_decided
from services.replay.simulated.timed import Served


def run(starts: list[int], second: list[int]) -> Run:
    made = replace(
        nothing_decided(len(starts)), start_step=np.array(starts, np.int16), second=np.array(second, np.int32)
    )
    done = np.cumsum(50.0 - np.array(starts))
    served = Served(done, done, done, 1.0, 1.0, float(done[-1]), 1)
    return Run("p", "", False, False, 1, made, 1.0, 1.0, served)


def test_hits_savings_and_throughput_count_after_the_fill() -> None:
    found = figures.of_run(run([0, 0, 25, 0, 10, 25], [-1, -1, 0, -1, -1, 1]), 2, 50, 50.0)
    assert (found["hit_rate"], found["of_pairs"], found["steps_saved"]) == (0.75, 0.5, 60 / 200)
    assert found["ks"] == {"0": 0.25, "10": 0.25, "25": 0.5}
    assert found["throughput"] == pytest.approx(200 / 140)
    assert found["throughput_over_time"] == [pytest.approx(200 / 140)]


def test_the_hottest_prompts_are_followed_over_time() -> None:
    made = replace(
        nothing_decided(8),
        start_step=np.array([25, 25, 5, 10, 25, 0, 5, 20], np.int16),
        source=np.array([7, 7, 8, 9, 8, -1, 7, 9], np.int32),
        second=np.array([-1, -1, -1, 7, -1, -1, -1, -1], np.int32),
    )
    assert figures.hottest(made, 0, periods=2, tops=(0.1, 1.0)) == {"0.1": [1.0, 5 / 60], "1": [1.0, 50 / 75]}


def test_costs_are_those_of_the_paper() -> None:
    none = figures.cost(0.0, extraction=False, cache=False)
    assert none == pytest.approx(242 * 3.67 / 3600)
    assert 1 - figures.cost(0.08 / 1.08, extraction=False) / none == pytest.approx(0.048, abs=0.02)
    assert 1 - figures.cost(0.3, extraction=True) / none == pytest.approx(0.25, abs=0.02)


def test_a_tiny_run_writes_every_figure(tmp_path: Path) -> None:
    folders = ["--out", str(tmp_path), "--work", str(tmp_path), "--embeddings", str(tmp_path / "embeddings")]
    clip_replays.main(["--fill", "30", "--count", "50", *folders])
    assert (tmp_path / "clip_replays.png").is_file()
    found = json.loads((tmp_path / "clip_replays.json").read_text())["figures"]
    assert found["rooms"] == [found["room"] // divisor for divisor in clip_replays.DIVISORS]
    for room, ones in found["by_room"].items():
        assert ones.keys() == {*clip_replays.COMPARED}
        assert all(one["bytes"] <= int(room) for one in ones.values())
    full = found["by_room"][str(found["room"])]
    assert full["flexcache-video"]["of_pairs"] > 0
    assert full["nirvana-video"]["of_pairs"] == 0
    assert full["flexcache-video"] == {**found["table_1"][str(found["room"])]["LRBU"]}
    assert found["fig_7"]["best"] == sorted(found["fig_7"]["best"], reverse=True)
    assert found["unlimited"]["steps_saved"] >= full["flexcache-video"]["steps_saved"]

    clip_equal.main(["--fill", "30", "--count", "50", *folders])
    (one,) = json.loads((tmp_path / "clip_equal.json").read_text())["figures"]["tables"]
    assert (one["steps"], one["why_not"]) == (10, "")
    full = one["by_room"][str(one["room"])]
    assert full.keys() == {*clip_replays.COMPARED}
    for each in full.values():
        assert each["bytes"] <= one["room"]
        assert 0.999 < each["throughput"] < 10 / 7  # K = 3 of 10 at most
        assert 0.95 < each["kept"]["attributes"] <= 1  # by starts of α = .9 alone
