"""Figures of the frontier from given scores, and one point that the engine generates."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bench.frontier import held_out_pairs, main
from bench.measuring.frechet import frechet_distance
from bench.measuring.judging import Verdict
from bench.traced.frontier_figures import (
    AUTO,
    Point,
    Scored,
    against_few_steps,
    bootstrapped,
    equal_quality,
    figures_of,
    report,
    starts,
)  # fmt: skip
from bench.traced.request_stream import SHARES, Generated, stream
from services.gpu_worker.jobs.codecs import encode_png
from shared.domain.types import ModelPlan, Plan, PlanSource, Relation
from shared.models.scenes import held_out
from tests import tiny

COUNT = 40


def scored(clip: float, right: int, blur: int, shift: float, steps: float = 5.0, seeds: float = 0.1) -> Scored:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (COUNT, 16, 16, 3), dtype=np.uint8)
    small = [Image.fromarray(one).resize((16 // blur, 16 // blur)).resize((16, 16)) for one in pixels]
    pictures = {number: encode_png(np.asarray(one)) for number, one in enumerate(small)}
    verdicts = [Verdict(clip, {"object": number < right, "style": True}) for number in range(COUNT)]
    features = rng.standard_normal((COUNT, 6)) + shift
    return Scored(Generated(pictures, steps, 12.5), verdicts, features, dict.fromkeys(range(5), seeds))


def test_every_point_is_held_against_the_first() -> None:
    first, second = scored(0.5, COUNT, 1, 0.0), scored(0.4, COUNT // 2, 4, 1.0)
    reference = np.random.default_rng(1).standard_normal((COUNT, 6))
    second = replace(second, rerolled=dict.fromkeys(range(5), 0.05))
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
    assert rows[1]["variety"] == pytest.approx((0.5, 0.5, 0.5))
    assert np.isnan(rows[1]["copying"]).all()  # nothing was reused
    figures = {"points": rows, "against_few_steps": [], "equal_quality": []}
    assert "| dpm++2m | T = 5 | 5 | 12.5 | 0.800 (0.800 to 0.800) | 0.500 (" in report(figures)


def test_a_reused_image_is_compared_with_its_source_by_the_relation_of_its_plan() -> None:
    noise, cached = scored(0.5, COUNT, 1, 0.0), scored(0.5, COUNT, 1, 0.0)
    hits = {0: Relation.EDIT, 1: Relation.TOPIC, 2: Relation.OTHER, 3: Relation.OTHER}
    plans = {number: plan(relation) for number, relation in hits.items()}
    sources = {number: noise.generated.pictures[number] for number in hits}
    other = scored(0.5, COUNT, 1, 0.0).generated.pictures[9]
    pictures = {**cached.generated.pictures, 1: other}
    cached = replace(cached, generated=replace(cached.generated, pictures=pictures, plans=plans, sources=sources))
    row = figures_of({Point("ddim", 50): noise, Point("ddim", 50, cached=True): cached}, noise.features)[1]
    assert row["likeness_of_edits"][0] == pytest.approx(0.0)
    assert row["copying"][0] == pytest.approx(-1 / 3, abs=0.05)  # one of three is unlike a source that noise copies
    assert row["starts"]["other"] == {"images": 2, "reused": 1.0, "k_of_t": {"15 of 50": 2}}
    missed = replace(plan(Relation.TOPIC), source=PlanSource.NOISE, start_step=0)
    assert starts(Generated({}, 0, 0, plans={0: missed}))["topic"]["reused"] == 0.0


def plan(relation: Relation) -> Plan:
    return Plan(PlanSource.LATENT, "large", 15, may_run=(ModelPlan("large", 15, steps=50),), relation=relation.value)


def test_few_steps_of_equal_quality_are_the_fewest_that_are_not_shown_to_be_worse() -> None:
    reference = np.random.default_rng(1).standard_normal((COUNT, 6))
    points = {
        Point("ddim", 50): scored(0.5, COUNT, 1, 0.0, 50),
        Point("ddim", 5): scored(0.5, COUNT, 1, 0.0, 5),
        Point("ddim", 2): scored(0.4, COUNT // 2, 1, 1.0, 2),
        Point("ddim", 5, cached=True): scored(0.5, COUNT, 1, 0.0, 4),
        Point("ddim", AUTO, cached=True): scored(0.4, COUNT // 2, 1, 1.0, 3),
    }
    compared = against_few_steps(points, reference)
    assert [(one["way"], one["noise"]) for one in compared] == [
        (way, f"T = {steps}") for way in ("cache, T = 5", "cache, T by the plan") for steps in (50, 5, 2)
    ]
    found = {(one["way"], one["noise_steps"]): one for one in compared}
    assert found["cache, T = 5", 2]["noise_worse"] == ["clip", "attributes", "frechet"]
    assert found["cache, T by the plan", 50]["worse"] == ["clip", "attributes", "frechet"]
    assert found["cache, T by the plan", 50]["attributes_p"] == pytest.approx(2 / 2**20)
    assert found["cache, T = 5", 5]["worse"] == found["cache, T = 5", 5]["noise_worse"] == []
    assert [(one["noise_steps"], round(one["steps_saved"], 3)) for one in equal_quality(compared)] == [
        (5, 0.2), (2, -0.5)
    ]  # fmt: skip


def test_the_stream_has_the_shares_and_relations_of_real_traffic() -> None:
    turns = stream(held_out_pairs(400, 18))
    for relation, share in SHARES.items():
        some = [turn for turn in turns if turn.relation is relation]
        assert len(some) / len(turns) == pytest.approx(share, abs=0.06)
        same = {turn.first.prompt == turn.second.prompt for turn in some}
        assert same == {True} if relation is Relation.REROLL else True not in same or relation is Relation.EDIT
        assert all((turn.first.user == turn.second.user) is (relation is not Relation.OTHER) for turn in some)
    assert len({turn.second.user for turn in turns}) == 50
    assert stream(held_out_pairs(400, 18)[:1])[0].first.prompt == turns[0].first.prompt


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
    main(["--count", "4", "--steps", "2", "1", "--cached", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "frontier.json").read_text())
    rows = found["figures"]["points"]
    assert [(row["sampler"], row["steps_run"]) for row in rows if not row["cached"]] == [
        ("ddim", 2), ("ddim", 1), ("dpm++2m", 2), ("dpm++2m", 1), ("ddim", 2)
    ]  # fmt: skip
    assert [row["way"] for row in rows if row["cached"]] == ["cache, T by the plan"]
    assert rows[0]["frechet"] > 0.01  # the reference images have other seeds
    assert found["settings"]["count"] == 4
    assert "| dpm++2m | T = 1 | " in capsys.readouterr().out


def test_the_cache_is_a_point_and_so_are_plans_that_choose_t_where_the_model_lists_several(tmp_path: Path) -> None:
    model = tiny.build(tmp_path / "models", clip=False) / "large"
    card = json.loads((model / "card.json").read_text())
    (model / "card.json").write_text(json.dumps({**card, "default_steps": 10, "auto_steps": [5, 10]}))
    main([
        "--model", str(model), "--count", "6", "--steps", "10", "--samplers", "ddim", "--cached", "10",
        "--out", str(tmp_path),
    ])  # fmt: skip
    figures = json.loads((tmp_path / "frontier.json").read_text())["figures"]
    assert [(row["way"], row["cached"]) for row in figures["points"]] == [
        ("T = 10", False), ("cache, T = 10", True), ("cache, T by the plan", True)
    ]  # fmt: skip
    _, named, chosen = figures["points"]
    for row in (named, chosen):
        assert sum(one["images"] for one in row["starts"].values()) == 6
        assert row["steps_run"] < 10  # some second prompts are near the first ones
        assert row["starts"].get("reroll", {"reused": 0})["reused"] == 0
    assert len(figures["against_few_steps"]) == 2


def test_few_steps_from_noise_also_run_as_a_plan_runs_them(tmp_path: Path) -> None:
    model = tiny.build(tmp_path / "models", clip=False) / "large"
    card = json.loads((model / "card.json").read_text())
    (model / "card.json").write_text(json.dumps({**card, "default_steps": 10, "unprompted": 0.4}))
    main([
        "--model", str(model), "--count", "4", "--steps", "10", "5", "--samplers", "ddim", "--cached",
        "--out", str(tmp_path),
    ])  # fmt: skip
    points = json.loads((tmp_path / "frontier.json").read_text())["figures"]["points"]
    assert [row["way"] for row in points] == ["T = 10", "T = 5", "T = 5, first without the prompt"]
    assert points[1]["clip"] != points[2]["clip"]
