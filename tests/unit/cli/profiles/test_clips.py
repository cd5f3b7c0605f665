"""A profile of a tiny model of clips: pairs of moving scenes, frames that are measured, and the K table for lookups."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from services.cli.app import app
from services.cli.profiles.judging import judge_of, vectors_of
from services.cli.profiles.pairs import CLIPS, asked_for, attributes, changed, scene_pairs
from services.cli.profiles.stitched import parts_of, stitched_pairs
from services.embedder.encoder import Encoder
from services.gpu_worker.jobs.codecs import encode_png
from services.trainer.rendering.clips import render_clip
from services.trainer.rendering.renderer import Renderer
from services.trainer.rendering.sprites import sprites_cached
from shared.domain.types import vector_from
from shared.models.k_table import table_from_json
from shared.models.quality import frames_of, likeness, look
from shared.models.scenes import CLIP_EDITS, edit_clip, random_moving_scene
from tests import tiny, tiny_families
from tests.tiny_clips import SMALL
from tests.tiny_segmenters import tiny_clipseg
from tests.unit.trainer.conftest import SPRITES

CLIP = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny.build_clip(tmp_path_factory.mktemp("models"), seed=7)  # scores these clips above nothing
    tiny_families.save(folder / "clips", "animatediff", channels=(16,))
    (folder / "clips" / "card.json").write_text(json.dumps(SMALL))
    return folder


def profile(models: Path, out: Path, *more: object) -> Any:
    given = ["--model", models / "clips", "--encoder", models / "clip", "--device", "cpu", "--out", out / "profile"]
    given += ["--data-dir", out / "data", "--pairs", "2", "--alphas", "0.5", "--k", "10,30", "--sprites", out, *more]
    return CliRunner().invoke(app, ["profile", *map(str, given)])


def test_a_profile_of_clips_gives_a_table_and_resumes(models: Path, tmp_path: Path) -> None:
    found = profile(models, tmp_path)
    assert found.exit_code == 0, found.output + repr(found.exception)
    assert "no sprites in" in "".join(found.output)
    rows = tmp_path / "profile" / "rows.jsonl"
    about, *records = map(json.loads, rows.read_text().splitlines())
    assert (about["frames"], about["steps"], about["ks"], about["judged"]) == (4, 10, [2, 6], False)
    assert [(record["pair"], record["kind"], record["k"]) for record in records] == [
        (n, kind, k) for n, kind in enumerate(CLIP_EDITS[:2]) for k in (2, 6)
    ]
    for record in records:
        assert record["measures"].keys() == {"contrast", "saturation", "sharpness", "likeness", "spread"}
        assert record["measures"]["likeness"] > record["measures_from_noise"]["likeness"]
    table = table_from_json(json.loads((tmp_path / "profile" / "k_table_0.5.json").read_text()))
    assert {cell.k for cell in table.cells} == {2, 6}
    page = (tmp_path / "profile" / "report.html").read_text()
    assert page.count("<article>") == 2
    assert json.loads((tmp_path / "profile" / "latency.json").read_text())["step_s"].keys() == {"1", "2"}
    rows.write_text("".join(rows.read_text().splitlines(keepends=True)[:3]))
    assert profile(models, tmp_path).exit_code == 0
    assert [json.loads(line)["score"] for line in rows.read_text().splitlines()[1:]] == pytest.approx(
        [record["score"] for record in records], abs=1e-4
    )


def test_a_codec_of_clips_is_chosen_by_the_same_pairs(models: Path, tmp_path: Path) -> None:
    found = profile(models, tmp_path, "--codecs", "--no-store", "--no-variety", "--pairs", 1, "--k", 10)
    assert found.exit_code == 0, found.output + repr(found.exception)
    levels = json.loads((tmp_path / "profile" / "state_codecs.json").read_text())["levels"]
    assert [(level["k"], level["codec"]) for level in levels] == [(2, "fp16")]
    assert levels[0]["bytes"] > 4 * 4 * 8 * 8 * 2  # four frames of four channels


def test_every_kind_of_change_changes_what_a_judge_reads() -> None:
    pairs = list(scene_pairs(200, 3, CLIPS))
    assert Counter(pair.kind for pair in pairs) == dict.fromkeys(CLIP_EDITS, 20)
    for pair in pairs:
        if pair.kind == "unrelated":
            assert {"object", "background"} <= set(changed(pair))
        else:
            assert changed(pair) == asked_for(pair) == (() if pair.kind == "paraphrase" else (pair.kind,))
        assert pair.before_text != pair.after_text or pair.kind == "paraphrase"
    assert {"size", "position"}.isdisjoint(attributes(pairs[0].before))
    with pytest.raises(ValueError, match="kind of edit must be one of"):
        edit_clip(random_moving_scene(random.Random(0)), "size", random.Random(0))


def test_a_clip_is_measured_by_at_most_four_of_its_frames(models: Path) -> None:
    frames = [CLIP[at] for at in (0, 2, 3, 5)]
    assert [frame.tobytes() for frame in frames_of(CLIP)] == [frame.tobytes() for frame in frames]
    encoder = Encoder(models / "clip")
    (vector,) = vectors_of(encoder, [CLIP])
    each = [vector_from(one.vector) for one in encoder.images([encode_png(frame) for frame in frames])]
    text = vector_from(encoder.texts(["a fox"])[0].vector)
    assert float(vector @ text) == pytest.approx(np.mean([float(one @ text) for one in each]), abs=1e-6)
    assert look(CLIP).contrast == pytest.approx(np.mean([look(frame).contrast for frame in frames]))
    assert likeness(CLIP, CLIP) == pytest.approx(1.0)
    assert abs(likeness(CLIP, CLIP[::-1])) < 0.1


def test_the_judge_of_clips_reads_what_pairs_change() -> None:
    if not sprites_cached(SPRITES):
        pytest.skip(f"no sprites in {SPRITES}")
    judge, why_not = judge_of(16, None, SPRITES)
    assert judge is not None, why_not
    pair = next(pair for pair in scene_pairs(20, 3, CLIPS) if pair.kind == "motion")
    clip = render_clip(Renderer(SPRITES), pair.after).pixels
    asked, other = judge([clip], pair.after)[0], judge([clip], pair.before)[0]
    assert asked.keys() == attributes(pair.after).keys()
    assert (asked["motion"], other["motion"]) == (True, False)


def test_a_profile_of_pairs_gives_their_own_table(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AFTERIMAGE_SEGMENT_THRESHOLD", "0.01")  # random masks, never empty ones
    segmenter = tiny_clipseg(tmp_path / "segmenter")
    for _ in range(2):  # the second run has nothing left to do
        found = profile(models, tmp_path, "--stitched", "--segmenter", segmenter)
        assert found.exit_code == 0, found.output + repr(found.exception)
    about, *records = map(json.loads, (tmp_path / "profile" / "rows.jsonl").read_text().splitlines())
    assert about["segmenter"] == str(segmenter)
    assert [(record["pair"], record["k"]) for record in records] == [(n, k) for n in range(2) for k in (2, 6)]
    encoder = Encoder(models / "clip")
    for record, pair in zip(records[::2], stitched_pairs(2, 0), strict=True):
        asked, one, other = (parts_of(text) for text in (pair.after_text, pair.before_text, pair.beside_text))
        texts = asked.object, one.object, asked.background, other.background
        a, b, c, d = (vector_from(found.vector) for found in encoder.texts(texts))
        assert record["similarity"] == pytest.approx(min(a @ b, c @ d), abs=1e-5)
    table = table_from_json(json.loads((tmp_path / "profile" / "pair_k_table_0.5.json").read_text()))
    assert table.encoder_hash == about["encoder_hash"]
    assert not (tmp_path / "profile" / "learned_bound.json").exists()
    page = (tmp_path / "profile" / "report.html").read_text()
    assert all(text in page for text in (pair.before_text, pair.beside_text, "source of the background"))

    refused = profile(models, tmp_path / "other", "--stitched")
    assert "segmenter" in str(refused.exception)


def test_the_sources_of_a_pair_give_its_parts() -> None:
    said = 0
    for pair in stitched_pairs(60, 3):
        one, other = parts_of(pair.before_text), parts_of(pair.beside_text)
        wanted = pair.before.scene
        if wanted.count == 1 and wanted.object in pair.before_text:  # the grammar's plainest name of it
            said += 1
            assert wanted.object in one.object
        assert one.both
        assert other.both
        assert pair.before_text != pair.beside_text
    assert said > 20
