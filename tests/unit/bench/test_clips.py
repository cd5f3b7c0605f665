"""Figures of clips from given rows, rows that resume, and both commands on a tiny model of clips."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench import clips_cost, clips_quality
from bench.clips_quality import resumed, said
from bench.measuring.clip_figures import READ, from_noise, from_states, report
from services.trainer.judging.motion import moving_scenes
from services.trainer.rendering.sprites import sprites_cached
from shared.models.scenes import CLIP_WORDINGS, clip_caption
from tests import tiny, tiny_families
from tests.tiny_clips import SMALL
from tests.unit.trainer.conftest import SPRITES

COUNT = 40


def rows(steps: int, right: int, clip: float, smooth: float = 0.95) -> list[dict[str, Any]]:
    return [
        {
            "number": n, "steps": steps, "clip": clip, "smooth": smooth,
            "right": {**dict.fromkeys(READ, True), "motion": n < right, "style": False},
        }
        for n in range(COUNT)
    ]  # fmt: skip


def test_every_t_is_held_against_the_largest_and_rendered_clips_stand_beside_them() -> None:
    found = from_noise([*rows(0, COUNT, 0.6, 0.98), *rows(4, 10, 0.4), *rows(50, 30, 0.5)])
    assert [row["steps"] for row in found] == [50, 4, 0]
    first, few, rendered = found
    assert first["right"]["motion"][0] == first["right"]["all"][0] == 0.75
    assert first["more_right"]["motion"] == first["more_right"]["object"] == (0.0, 0.0, 0.0)
    assert few["clip_ratio"][0] == pytest.approx(0.8)
    assert few["more_right"]["motion"][0] == -0.5
    assert few["more_right"]["motion"][2] < -0.3
    assert rendered["smooth"][0] == pytest.approx(0.98)
    assert first["smooth_ratio"][0] == pytest.approx(0.95 / 0.98)
    assert "| rendered | 40 |" in report({"from_noise": found, "from_states": []})


def test_motions_have_shares_of_their_own_and_no_t_is_needed() -> None:
    some = [row | {"motion": "left" if row["number"] < 20 else "hop"} for of in (0, -1) for row in rows(of, 30, 0.5)]
    found = from_noise(some)
    assert [row["by_motion"] for row in found] == [{"hop": 0.5, "left": 1.0}] * 2
    text = report({"from_noise": found, "from_states": []})
    assert "| round trip | 40 |" in text
    assert "| right motions, T | hop | left |" in text
    assert from_noise([]) == []


def test_starts_at_k_are_held_against_noise_and_a_paraphrase_changes_nothing() -> None:
    right = dict.fromkeys((*READ, "style"), True)

    def record(n: int, k: int, asked: Sequence[str]) -> dict[str, Any]:
        own = right | {"motion": k < 5}
        return {
            "k": k, "pair": n, "asked_for": asked, "right": own, "right_from_noise": right, "score": 0.3,
            "score_from_noise": 0.4,
        }  # fmt: skip

    found = from_states([record(n, k, ["motion"] if n % 2 else []) for n in range(20) for k in (1, 5)])
    assert [(row["way"], row["clips"], row["shown"][0]) for row in found] == [
        ("reference", 20, 1.0),
        ("K = 1", 20, 1.0),
        ("K = 5", 20, 0.0),
    ]
    assert found[1]["clip_ratio"][0] == pytest.approx(0.75)
    assert found[2]["more_right"]["all"][0] == -1.0
    assert "| K = 5 | 20 | 0.750 (" in report({"from_noise": [], "from_states": found})


def test_other_wordings_name_the_same_scene_in_other_words() -> None:
    scenes = moving_scenes(32)
    captions, others = ([said(scene, n, free) for n, scene in enumerate(scenes)] for free in (False, True))
    assert captions == [clip_caption(scene, n % CLIP_WORDINGS) for n, scene in enumerate(scenes)]
    assert others == [said(scene, n, True) for n, scene in enumerate(scenes)]
    assert all(one != other for one, other in zip(captions, others, strict=True))
    assert all(scene.scene.object in text for scene, text in zip(scenes, others, strict=True) if scene.scene.count == 1)


def test_rows_resume_and_other_settings_do_not(tmp_path: Path) -> None:
    path = tmp_path / "out" / "rows.jsonl"
    assert resumed(path, {"seed": 1}) == []
    with path.open("a") as file:
        file.write('{"number": 0}\n{"numb')  # killed within a line
    assert resumed(path, {"seed": 1}) == [{"number": 0}]
    assert path.read_text() == '{"seed": 1}\n{"number": 0}\n'
    with pytest.raises(ValueError, match="measured with other settings"):
        resumed(path, {"seed": 2})


def test_both_commands_run_on_a_tiny_model_and_continue(tmp_path: Path) -> None:
    model = tiny_families.save(tiny.build_clip(tmp_path, seed=7) / "clips", "animatediff")
    (model / "card.json").write_text(json.dumps(SMALL))
    clips_cost.main(["--tiny", "--model", str(model), "--threads", "1", "--out", str(tmp_path)])
    cost = json.loads((tmp_path / "clips_cost.json").read_text())
    assert [(row["frames"], row["batch"], row["steps"]) for row in cost["figures"]["rows"]] == [(4, 1, 2), (4, 1, 1)]
    assert all(row["seconds_per_clip"] > 0 and row["peak_mib"] > 0 for row in cost["figures"]["rows"])
    path = tmp_path / "rows.jsonl"
    asked = ["--tiny", "--model", str(model), "--encoder", str(tmp_path / "clip"), "--threads", "1"]
    asked += ["--sprites", str(tmp_path), "--rows", str(path), "--out", str(tmp_path)]
    clips_quality.main(asked)
    lines = path.read_text().splitlines(keepends=True)
    assert [json.loads(line)["number"] for line in lines[1:]] == [0, 0, 1, 1]
    path.write_text("".join(lines[:-1]))
    clips_quality.main(asked)
    assert len(path.read_text().splitlines()) == len(lines)
    points = json.loads((tmp_path / "clips_quality.json").read_text())["figures"]["from_noise"]
    assert [(point["steps"], point["clips"], point["right"]) for point in points] == [(2, 2, {}), (1, 2, {})]


def test_rendered_clips_judge_the_judge_and_rows_of_earlier_versions_are_kept(tmp_path: Path) -> None:
    if not sprites_cached(SPRITES):
        pytest.skip(f"no sprites in {SPRITES}")
    path = tmp_path / "rows.jsonl"
    asked = ["--steps", "--threads", "1", "--sprites", str(SPRITES), "--rows", str(path), "--out", str(tmp_path)]
    clips_quality.main([*asked, "--count", "2"])
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"steps": -1' not in line))  # as before round trips were judged
    clips_quality.main([*asked, "--count", "3"])
    assert path.read_text().startswith(lines[0] + lines[1])
    points = json.loads((tmp_path / "clips_quality.json").read_text())["figures"]["from_noise"]
    assert [(point["steps"], point["clips"]) for point in points] == [(0, 3), (-1, 3)]
    assert points[1]["right"]["motion"][0] == points[1]["right"]["background"][0] == 1.0
    assert points[1]["smooth_ratio"][0] > 0.9
    assert len(list(tmp_path.glob("rows-*.png"))) == 5  # prompt 0 and 1 twice
