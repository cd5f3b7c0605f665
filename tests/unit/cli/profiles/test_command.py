"""A profile on the tiny models: measured, resumed after a kill, stored where lookups read it."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from services.cli.app import app
from services.cli.profiles.measure import Profiler, profile_row, varied
from services.cli.profiles.pairs import ScenePair, scene_pairs
from services.embedder.encoder import Encoder
from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Finished
from services.gpu_worker.engine.rows import FromNoise, FromPicture, Pixels, Start, Task
from services.gpu_worker.families import load_family
from services.gpu_worker.jobs.codecs import encode_png, encode_state
from shared.catalog import open_catalog
from shared.domain.errors import ConfigurationError, InvalidRequestError
from shared.domain.types import vector_from
from shared.models import find_card, step_regression
from shared.models.k_table import profile_kind, table_from_json
from shared.models.scenes import EDITS
from shared.models.state_codecs import OF_CLIPS, SMALLEST_FIRST, load_codecs
from shared.runtime import progress as remaining
from shared.runtime.settings import Settings
from tests import tiny

RECORD: dict[str, Any] = {
    "pair": 0, "kind": "colour", "k": 5, "similarity": 0.9, "score": 0.27, "score_from_noise": 0.3,
    "right": {"colour": True, "object": False}, "right_from_noise": {"colour": False, "object": True},
    "asked_for": ["colour"],
}  # fmt: skip


def test_a_record_becomes_a_row_of_algorithm_2() -> None:
    row = profile_row(RECORD)
    assert (row.score, row.score_from_noise) == (0.27, 0.3)
    assert (row.kept, row.kept_from_noise) == (True, False)
    both = profile_row(RECORD | {"asked_for": ["colour", "object"]})
    assert (both.kept, both.kept_from_noise) == (False, False)
    unjudged = profile_row(RECORD | {"right": {}, "right_from_noise": {}})
    assert unjudged.kept is None
    assert profile_row(RECORD | {"score": -0.1, "score_from_noise": -0.2}).score_from_noise == 0.0  # CLIPScore


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """UNets of one level, whose step takes half of the time."""
    return build(tmp_path_factory.mktemp("models"), (16,))


@pytest.fixture(scope="module")
def of_two_levels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Their images differ more: none is without any contrast."""
    return build(tmp_path_factory.mktemp("models"), (16, 32))


def build(folder: Path, channels: tuple[int, ...]) -> Path:
    tiny.build(folder, seed=1)  # its encoder scores pictures above nothing
    for name, seed in (("large", 1), ("small", 5)):  # a profile generates hundreds of images of the default size
        tiny.build(folder, seed=seed, name=name, channels=channels, clip=False)
        card = folder / name / "card.json"
        card.write_text(json.dumps(json.loads(card.read_text()) | {"default_size": {"width": 32, "height": 32}}))
    return folder


def profile(models: Path, tmp_path: Path, *more: str) -> Any:
    arguments = ["--model", models / "large", "--encoder", models / "clip", "--steps", "10", "--device", "cpu"]
    arguments += ["--k", "5,10,15,20,25"]
    arguments += ["--out", tmp_path / "profile", "--data-dir", tmp_path / "data", *more]
    return CliRunner().invoke(app, ["profile", *map(str, arguments)], catch_exceptions=True)


async def test_without_pairs_only_what_else_was_asked_for_is_measured_and_stored(models: Path, tmp_path: Path) -> None:
    found = await asyncio.to_thread(profile, models, tmp_path, "--pairs", "0", "--mixes", "10")
    assert found.exit_code == 0, found.output + repr(found.exception)
    assert {path.name for path in (tmp_path / "profile").iterdir()} == {"latency.json", "step_seconds.json"}
    catalog = await open_catalog(Settings(data_dir=tmp_path / "data").catalog_url)
    about = json.loads((tmp_path / "profile" / "latency.json").read_text())
    weights = find_card(str(models / "large")).weights_hash
    assert about["step_s"]["1"] > 0
    assert await catalog.profiles.get(profile_kind(0.95), "large", weights) is None
    assert await catalog.profiles.get(step_regression.KIND, "large", weights) is not None
    await catalog.close()


@pytest.mark.usefixtures("plotted")
async def test_a_profile_is_measured_resumed_and_stored(
    of_two_levels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remaining, "EVERY_S", 0.0)
    first = await asyncio.to_thread(profile, of_two_levels, tmp_path, "--pairs", "4", "--alphas", "0.5")
    assert first.exit_code == 0, first.output + repr(first.exception)
    rows = tmp_path / "profile" / "rows.jsonl"
    lines = rows.read_text().splitlines()
    assert len(lines) == 1 + 4 * 5
    about = json.loads(lines[0])
    assert about.pop("dtype") == "float32"
    lines[0] = json.dumps(about)  # as earlier versions began a run
    lines[1:6] = [json.dumps(without_measures(line)) for line in lines[1:6]]  # and as they wrote a pair
    rows.write_text("\n".join(lines[:13]) + "\n" + lines[13][:20])  # killed in the middle of the third pair
    second = await asyncio.to_thread(
        profile, of_two_levels, tmp_path, "--pairs", "4", "--alphas", "0.5", "--mixes", "10"
    )
    assert second.exit_code == 0, second.output + repr(second.exception)
    said = "".join(second.output.split())  # lines are folded anywhere
    assert "α=0.5:noKissafebythese4pairs" in said
    assert f"Storedforlargein{tmp_path}/data/catalog.sqlite3" in said
    # steps of a pair: the first prompt, three seeds from noise, and from each K with its seed and three of fresh noise
    each = 10 + 3 * 10 + 4 * sum(10 - k for k in (1, 2, 3, 4, 5))  # two pairs were there
    lines_said = [line for line in second.output.splitlines() if line.startswith("denoising steps: ")]
    assert lines_said[0].startswith(f"denoising steps: {2 * each + 1} of {4 * each} (")
    assert all(line.endswith(" left") and " a " in line for line in lines_said)
    resumed = rows.read_text().splitlines()
    assert resumed[:11] == lines[:11]
    assert _scores(resumed) == pytest.approx(_scores(lines), abs=1e-4)

    table = table_from_json(json.loads((tmp_path / "profile" / "k_table_0.5.json").read_text()))
    assert table.steps == 10
    assert sum(cell.count for cell in table.cells) == 20
    assert {"kinds", "right", "pairs", "alpha"} <= json.loads(
        (tmp_path / "profile" / "quality.json").read_text()
    ).keys()
    measured = table.cells[0].quality
    assert measured is not None
    assert measured.contrast is not None
    assert measured.copying is not None
    assert measured.variety is not None
    assert (measured.variety.count, measured.copying.count) == (3, 3)  # the old pair has none
    assert 0 < measured.variety.value < 3
    page = (tmp_path / "profile" / "report.html").read_text()
    assert "T = 10" in page
    assert page.count("<article>") == 4
    assert page.count("data:image/jpeg;base64,") == 4 * (1 + 3 + 5 * 4)
    assert not re.search(r"(src|href)=.?(http|/)", page)
    latency = json.loads((tmp_path / "profile" / "latency.json").read_text())
    assert latency["step_s"]["1"] > 0
    assert (latency["size"], latency["device"]) == ("32x32", "cpu")
    catalog = await open_catalog(f"sqlite+aiosqlite:///{tmp_path}/data/catalog.sqlite3")
    stored = await catalog.profiles.get("k_table_0.5", "large", table.weights_hash)
    assert await catalog.profiles.get("latency", "large", table.weights_hash) == latency
    mixes = json.loads((tmp_path / "profile" / "step_seconds.json").read_text())
    assert await catalog.profiles.get("step_seconds", "large", table.weights_hash) == mixes
    assert mixes["layout"] == "groups"
    await catalog.close()
    assert stored is not None
    assert table_from_json(stored).levels == table.levels

    rows.write_text(rows.read_text().replace("{", '{"dtype": "float16", ', 1))
    half = await asyncio.to_thread(profile, of_two_levels, tmp_path, "--pairs", "4")
    assert "other settings" in str(half.exception)

    other = await asyncio.to_thread(profile, of_two_levels, tmp_path, "--pairs", "4", "--seed", "9")
    assert isinstance(other.exception, ConfigurationError)
    assert "other settings" in str(other.exception)


def test_variety_and_copying_cost_at_most_half_of_a_profile_without_them(models: Path) -> None:
    ks = Settings().capture_steps
    profiler = Profiler(load_family(find_card(str(models / "large"))), Encoder(models / "clip"), None, ks, steps=50)
    pairs = list(scene_pairs(400, seed=0))
    before = len(pairs) * (max(ks) + 50 + sum(50 - k for k in ks))
    assert sum(map(profiler.steps_of, pairs)) == 168_750 < 1.5 * before  # the number that --help gives
    assert Counter(pair.kind for pair in pairs if varied(pair)) == dict.fromkeys(EDITS, 5)


def without_measures(line: str) -> dict[str, Any]:
    """The record as earlier versions wrote it."""
    return {name: value for name, value in json.loads(line).items() if "measures" not in name and "variety" not in name}


async def test_codecs_are_chosen_for_each_k_and_t_and_stored(models: Path, tmp_path: Path) -> None:
    more = ["--pairs", "2", "--alphas", "0.5", "--k", "10,30", "--steps", "10,5", "--codecs"]
    found = await asyncio.to_thread(profile, models, tmp_path, *more)
    assert found.exit_code == 0, found.output + repr(found.exception)
    card = find_card(str(models / "large"))
    catalog = await open_catalog(f"sqlite+aiosqlite:///{tmp_path}/data/catalog.sqlite3")
    choice = await load_codecs(catalog.profiles, card)
    await catalog.close()
    assert choice is not None
    assert [(level.steps, level.k) for level in choice.levels] == [(10, 2), (10, 6), (5, 1), (5, 3)]
    for level in choice.levels:  # two pairs prove nothing, so every smaller codec broke a bound
        assert (level.codec, level.pairs) == ("fp16", 2)
        assert set(level.why_not) == set(SMALLEST_FIRST) - set(OF_CLIPS)
        assert level.bytes == len(encode_state(np.zeros((4, 8, 8), np.float32), "fp16"))
    (records,) = (tmp_path / "profile").glob("codecs-*.jsonl")
    lines = records.read_text().splitlines(keepends=True)
    records.write_text("".join(lines[:20]) + lines[20][:9])  # killed within a line
    again = await asyncio.to_thread(profile, models, tmp_path, *more)
    assert again.exit_code == 0, again.output + repr(again.exception)
    assert [json.loads(line)["codec"] for line in records.read_text().splitlines()[:20]] == [
        json.loads(line)["codec"] for line in lines[:20]
    ]
    assert len(records.read_text().splitlines()) == len(lines)
    shipped = json.loads((tmp_path / "profile" / "state_codecs.json").read_text())
    assert shipped["weights_hash"] == card.weights_hash


async def test_every_t_has_rows_and_tables_and_one_page_shows_them_all(models: Path, tmp_path: Path) -> None:
    more = ["--pairs", "2", "--alphas", "0.5", "--k", "10,30", "--steps", "10,5"]
    found = await asyncio.to_thread(profile, models, tmp_path, *more)
    assert found.exit_code == 0, found.output + repr(found.exception)
    references = []
    for folder, steps, ks in ((tmp_path / "profile", 10, [2, 6]), (tmp_path / "profile" / "T5", 5, [1, 3])):
        about, *records = map(json.loads, (folder / "rows.jsonl").read_text().splitlines())
        assert (about["steps"], about["ks"]) == (steps, ks)
        assert [record["k"] for record in records] == ([0, *ks] if steps == 5 else ks) * 2
        references.append({record["pair"]: record["score_from_noise"] for record in records})
        for record in records:
            own, noise = record["measures"], record["measures_from_noise"]
            assert own.keys() == noise.keys() == {"contrast", "saturation", "sharpness", "likeness", "spread"}
            assert -1 <= own["likeness"] <= 1
            assert noise["spread"] > 0
        name = "k_table_0.5_t5.json" if steps == 5 else "k_table_0.5.json"
        table = table_from_json(json.loads((folder / name).read_text()))
        assert table.steps == steps
        assert (table.noise is not None) == (steps == 5)
        assert {cell.k for cell in table.cells} == set(ks)
        measured = json.loads((folder / "quality.json").read_text())
        assert measured["steps"] == steps
        assert measured["bounds"]["copying"]["at_most"] is True
        assert measured["kinds"]["paraphrase"][str(ks[0])]["quality"]["copying"]["count"] == 1
    assert references[0] == pytest.approx(references[1], abs=1e-5)  # every T against the same images
    assert "no learned bound: needs 100 pairs" in "".join(found.output).replace("\n", " ")
    page = (tmp_path / "profile" / "report.html").read_text()
    assert "T = 10" in page
    assert "T = 5" in page
    catalog = await open_catalog(f"sqlite+aiosqlite:///{tmp_path}/data/catalog.sqlite3")
    names = ("k_table_0.5", "k_table_0.5_t5")
    stored = [await catalog.profiles.get(name, "large", about["weights_hash"]) for name in names]
    await catalog.close()
    assert [one["steps"] for one in stored if one] == [10, 5]


@pytest.mark.parametrize("more", [["--steps", "1"], ["--steps", "50,x"], ["--k", "0"]])
def test_steps_and_k_are_whole_numbers(models: Path, tmp_path: Path, more: list[str]) -> None:
    found = profile(models, tmp_path, *more)
    assert isinstance(found.exception, InvalidRequestError)
    assert f"{more[0][2:]}: must be whole numbers from" in str(found.exception)


def test_few_mixes_are_refused_before_anything_is_measured(models: Path, tmp_path: Path) -> None:
    found = profile(models, tmp_path, "--mixes", "5")
    assert isinstance(found.exception, InvalidRequestError)
    assert "mixes: must be 0 or at least 10" in str(found.exception)
    assert not (tmp_path / "profile").exists()


async def test_a_profile_from_pictures_of_another_model(models: Path, tmp_path: Path) -> None:
    small = models / "small"
    more = ["--images-from", models / "large", "--pairs", "2", "--alphas", "0.5", "--steps", "10", "--device", "cpu"]
    arguments = ["--model", small, "--encoder", models / "clip", "--out", tmp_path / "out", "--data-dir", tmp_path]
    found = await asyncio.to_thread(CliRunner().invoke, app, ["profile", *map(str, [*arguments, *more])])
    assert found.exit_code == 0, found.output + repr(found.exception)
    about, *records = map(json.loads, (tmp_path / "out" / "rows.jsonl").read_text().splitlines())
    assert about["ks"] == [1, 2, 3, 4, 5, 6]  # of 10, as 5 to 30 are of 50
    assert (about["model"], about["images_from"], about["against"]) == ("small", "large", "large")
    assert [about[name] for name in ("dtype", "images_dtype", "against_dtype")] == ["float32"] * 3
    table = table_from_json(json.loads((tmp_path / "out" / "image_k_table_large_0.5.json").read_text()))
    assert table.noise is not None  # its runs from noise, against those of the large model
    assert (table.noise.k, table.noise.count) == (0, 2)
    assert (table.images_from, table.images_weights_hash) == ("large", find_card(str(models / "large")).weights_hash)
    catalog = await open_catalog(f"sqlite+aiosqlite:///{tmp_path}/catalog.sqlite3")
    assert await catalog.profiles.get("image_k_table_0.5", "small from large", table.weights_hash) is not None
    assert await catalog.profiles.get("k_table_0.5", "small", table.weights_hash) is None  # latents have their own
    await catalog.close()
    pair = next(scene_pairs(1, seed=0))
    score, score_from_noise, similarity = await asyncio.to_thread(_by_hand, models, pair)
    record = next(record for record in records if record["pair"] == 0 and record["k"] == 3)
    assert record["score"] == pytest.approx(score, abs=1e-3)
    assert record["score_from_noise"] == pytest.approx(score_from_noise, abs=1e-3)
    assert record["similarity"] == pytest.approx(similarity, abs=1e-3)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--against", "large"], "against: needs --images-from"),
        (["--images-from", "large", "--fresh-noise", "0.3"], "fresh_noise: must be 0"),
        (["--images-from", "copy"], "images_from: has the name of another model here, 'small'"),
    ],
)
def test_what_pictures_cannot_be_profiled_with(models: Path, tmp_path: Path, more: list[str], said: str) -> None:
    tiny.build(tmp_path / "other", seed=6, name="small", clip=False)
    places = {"large": str(models / "large"), "copy": str(tmp_path / "other" / "small")}
    arguments = ["--model", models / "small", "--encoder", models / "clip", "--out", tmp_path / "out", "--steps", "10"]
    found = CliRunner().invoke(app, ["profile", *map(str, arguments), *(places.get(word, word) for word in more)])
    assert isinstance(found.exception, InvalidRequestError)
    assert said in str(found.exception)


def _by_hand(models: Path, pair: ScenePair) -> tuple[float, float, float]:
    """Large's picture of the first prompt, small's of the second from it at step 3, large's of the second."""
    families = {name: load_family(find_card(str(models / name))) for name in ("large", "small")}
    engine, eye = Engine(families), Encoder(models / "clip")

    def draw(model: str, prompt: str, seed: int, start: Start) -> Pixels:
        card = families[model].card
        engine.submit(Task(model, model, prompt, card.default_size, 10, card.default_guidance, seed, start=start))
        while True:
            for event in engine.step():
                if isinstance(event, Finished):
                    return event.pixels

    before = draw("large", pair.before_text, pair.before_seed, FromNoise())
    after = draw("small", pair.after_text, pair.after_seed, FromPicture(before, 3))
    from_noise = draw("large", pair.after_text, pair.after_seed, FromNoise())
    text = vector_from(eye.texts([pair.after_text])[0].vector)
    scores = [float(vector_from(one.vector) @ text) for one in eye.images([encode_png(p) for p in (after, from_noise)])]
    return scores[0], scores[1], float(vector_from(eye.images([encode_png(before)])[0].vector) @ text)


def _scores(lines: list[str]) -> list[float]:
    records = sorted((json.loads(line) for line in lines[1:]), key=lambda record: (record["pair"], record["k"]))
    return [record["score"] for record in records]
