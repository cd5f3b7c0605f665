"""Figures of the frontier from given scores, and one point that the engine generates."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bench.frontier import Generated, Point, Scored, bootstrapped, figures_of, held_out_pairs, main, report
from bench.measuring.frechet import frechet_distance
from bench.measuring.judging import Verdict
from services.gpu_worker.jobs.codecs import encode_png
from shared.models.scenes import held_out

COUNT = 40


def scored(clip: float, right: int, blur: int, shift: float) -> Scored:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (COUNT, 16, 16, 3), dtype=np.uint8)
    small = [Image.fromarray(one).resize((16 // blur, 16 // blur)).resize((16, 16)) for one in pixels]
    pictures = {number: encode_png(np.asarray(one)) for number, one in enumerate(small)}
    verdicts = [Verdict(clip, {"object": number < right, "style": True}) for number in range(COUNT)]
    return Scored(Generated(pictures, 5.0, 12.5), verdicts, rng.standard_normal((COUNT, 6)) + shift)


def test_every_point_is_held_against_the_first() -> None:
    first, second = scored(0.5, COUNT, 1, 0.0), scored(0.4, COUNT // 2, 4, 1.0)
    reference = np.random.default_rng(1).standard_normal((COUNT, 6))
    rows = figures_of({Point("ddim", 50): first, Point("dpm++2m", 5): second}, reference)
    assert [(row["sampler"], row["steps"], row["images"]) for row in rows] == [
        ("ddim", 50, COUNT),
        ("dpm++2m", 5, COUNT),
    ]
    assert rows[0]["clip_ratio"] == (1.0, 1.0, 1.0)
    assert rows[0]["attributes"] == (1.0, 1.0, 1.0)
    assert rows[0]["frechet_more"] == (0.0, 0.0, 0.0)
    assert rows[1]["clip_ratio"][0] == pytest.approx(0.8)
    assert rows[1]["attributes"][0] == 0.5
    assert rows[1]["attributes_more"][1] < -0.5 < rows[1]["attributes_more"][2]
    assert rows[1]["edges"] < 0.8 < rows[0]["edges"] == 1.0
    assert rows[1]["frechet"] == pytest.approx(frechet_distance(second.features, reference))
    value, low, high = rows[1]["frechet_more"]
    assert 0 < low < value < high
    assert "| dpm++2m | 5 | 12.5 | 0.800 (0.800 to 0.800) | 0.500 (" in report(rows)


def test_a_bootstrapped_interval_covers_the_mean_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    covered = 0
    for number in range(200):
        _, low, high = bootstrapped(rng.random(60), rounds=400, seed=number)
        covered += low <= 0.5 <= high
    assert 0.88 <= covered / 200 <= 0.99


def test_only_prompts_held_out_from_training_are_used() -> None:
    pairs = held_out_pairs(30, 18)
    assert all(held_out(pair.after) for pair in pairs)
    assert len({pair.number for pair in pairs}) == 30
    assert held_out_pairs(10, 18) == pairs[:10]


def test_a_small_run_records_every_point(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--count", "4", "--steps", "2", "1", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "frontier.json").read_text())
    rows = found["figures"]["points"]
    assert [(row["sampler"], row["steps_run"]) for row in rows] == [
        ("ddim", 2), ("ddim", 1), ("dpm++2m", 2), ("dpm++2m", 1)
    ]  # fmt: skip
    assert rows[0]["frechet"] > 0.01  # the reference images have other seeds
    assert found["settings"]["count"] == 4
    assert "| dpm++2m | 1 | " in capsys.readouterr().out
