"""The bench of variety: the users' requests, its figures from images made by hand, and one small run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.traced.users_stream import KINDS, Given, name_of, users_requests
from bench.variety import figures_of, main, root_share, seeds_by
from services.gpu_worker.jobs.codecs import encode_png
from shared.domain.types import Plan, PlanSource, Source, Vector
from tests import tiny

USERS = 4
WANTED = users_requests(USERS, 18)


def test_users_ask_in_turns_and_repeat_each_other_s_prompts() -> None:
    assert [one.kind for one in WANTED] == [kind for kind in KINDS for _ in range(USERS)]
    assert [one.asked.user for one in WANTED[:USERS]] == [f"user {number}" for number in range(USERS)]
    assert len({one.asked.seed for one in WANTED}) == len(WANTED)
    rerolls = seeds_by(WANTED, own_user=True)
    assert len(rerolls) == 2 * USERS
    assert all(len({WANTED[number].asked.user for number in some}) == 1 for some in rerolls)
    across = seeds_by(WANTED, own_user=False)
    assert all(len({WANTED[number].asked.user for number in some}) == len(some) for some in across)
    assert {WANTED[number].kind for some in across for number in some} == {"popular", "another user's"}


def given(seed: int) -> dict[int, Given]:
    rng, plan = np.random.default_rng(seed), Plan(PlanSource.NOISE, "large", relation="topic")
    pixels = rng.integers(0, 256, (len(WANTED), 16, 16, 3), dtype=np.uint8)
    return {number: Given(plan, encode_png(one), 50) for number, one in enumerate(pixels)}


def embedded(seed: int) -> dict[int, Vector]:
    vectors = np.random.default_rng(seed).standard_normal((len(WANTED), 8)).astype(np.float32)
    return dict(enumerate(vectors / np.linalg.norm(vectors, axis=1, keepdims=True)))


def test_images_that_follow_one_source_lose_variety_and_are_copies() -> None:
    noise, known = given(1), embedded(1)
    same = figures_of(WANTED, noise, noise, known, known)
    assert same["variety"]["rerolls"][0] == same["variety"]["across_users"][0] == 1.0
    assert (same["root_share"], same["unseen_from_noise"], same["copying_images"]) == (0.0, 1.0, 0)
    hit = Plan(PlanSource.LATENT, "large", 15, sources=(Source(name_of(0), "key"),), relation="other", root=name_of(0))
    others = [one.number for one in WANTED if one.asked.user != WANTED[0].asked.user]
    copies = {**noise, **{number: Given(hit, noise[0].png, 35) for number in others}}
    found = figures_of(WANTED, copies, noise, dict.fromkeys(known, known[0]), known)
    assert found["variety"]["across_users"][0] == pytest.approx(0.0, abs=1e-6)
    assert found["copying"][0] == pytest.approx(1.0, abs=0.1)
    assert found["copying_images"] == len(others)
    assert (found["root_share"], found["unseen_from_noise"]) == (1.0, 0.25)
    one = replace(hit, relation="edit")
    edited = figures_of(WANTED, {**noise, 5: Given(one, noise[0].png, 35)}, noise, known, known)
    assert edited["edits"]["images"] == 1
    assert edited["edits"]["with_cache"][0] == pytest.approx(1.0)


def test_the_share_of_a_root_counts_other_users_alone() -> None:
    noise = given(1)
    root = Plan(PlanSource.LATENT, "large", 15, sources=(Source(name_of(0), "key"),), root=name_of(0))
    assert root_share(WANTED, {**noise, USERS: Given(root, b"", 35)}) == 0.0  # the same user's next image
    assert root_share(WANTED, {**noise, 1: Given(root, b"", 35)}) == pytest.approx(1 / 30)


def test_a_small_run_records_figures_and_a_sheet_of_edits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny.build(tmp_path / "models", clip=False) / "large"
    card = json.loads((model / "card.json").read_text())
    (model / "card.json").write_text(json.dumps({**card, "default_steps": 10}))
    folders = ["--out", str(tmp_path), "--sheets", str(tmp_path / "sheets")]
    main(["--model", str(model), "--users", "2", "--steps", "10", *folders])
    run = json.loads((tmp_path / "variety.json").read_text())["figures"]["runs"]["T = 10"]
    assert run["images"] == 20
    assert run["kinds"]["unseen"]["reused"] == 0
    assert run["kinds"]["reroll"]["reused"] == 0
    assert run["kinds"]["paraphrase"]["reused"] > 0
    assert run["root_share"] <= 0.05
    assert (tmp_path / "sheets" / "edits-10.png").exists()
    assert "| T = 10 | " in capsys.readouterr().out
