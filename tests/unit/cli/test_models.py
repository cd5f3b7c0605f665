"""`afterimage models`: what can be served, whether it will load, and names for it."""

from __future__ import annotations

import asyncio
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants
from rich.console import Console

from services.cli import models
from services.cli.display.tables import WIDE
from services.cli.embedded import settings_from
from services.embedder.encoder import encoder_hash
from shared.catalog import open_catalog
from shared.domain.errors import ModelError
from shared.models import added, find_card
from shared.models.card_lookup import BUNDLED
from shared.models.k_table import KTable, Level, profile_kind, table_to_json
from tests import tiny_families


@pytest.fixture(scope="module")
def sana(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_families.save(tmp_path_factory.mktemp("models") / "tiny-sana", "sana")
    card = {"name": "tiny-sana", "sizes": {"multiple_of": 4, "min_px": 32}, "about": "Draws noise"}
    (folder / "card.json").write_text(json.dumps(card))
    return folder


@pytest.fixture(autouse=True)
def _an_empty_hub_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    text = io.StringIO()
    monkeypatch.setattr(models, "wide", lambda: Console(file=text, width=WIDE))
    return text


def test_list_shows_bundled_added_and_known_ones(sana: Path, shown: io.StringIO, tmp_path: Path) -> None:
    models.add(str(sana), name="mine", data_dir=tmp_path)
    assert f"mine is {sana} (sana)" in shown.getvalue()
    assert f"afterimage demo --large mine --data-dir {tmp_path}" in shown.getvalue()
    models.list_models(data_dir=tmp_path)
    lines = {line.split()[1]: line for line in shown.getvalue().splitlines() if line.startswith("│")}
    assert {"large", "small", "mine", "sdxl", "sd-3.5-large", "flux.1-dev", "sana-1.6b"} <= set(lines)
    assert "16×128×128" in lines["sd-3.5-large"]
    assert "25.6 GiB" in lines["sd-3.5-large"]
    assert "4×16×16" in lines["large"]
    assert "8×32×32" in lines["mine"]


def test_check_says_what_it_is_and_draws_when_told_to(sana: Path, shown: io.StringIO, tmp_path: Path) -> None:
    models.add(str(sana), name=None, data_dir=tmp_path)
    models.check("tiny-sana", data_dir=tmp_path)
    said = shown.getvalue()
    assert "tiny-sana: Draws noise" in said
    assert "sana: supported" in said
    assert "128x128 (generates width and height multiples of 4 from 32 to 2048) · 8×32×32" in said
    assert "missing" in said
    assert "nothing" in said
    models.check(str(sana), run=True, device="cpu", offload="model", dtype="bfloat16", data_dir=tmp_path)
    assert "generated 32x32 on cpu: loaded in " in shown.getvalue()


def test_check_says_how_long_a_models_clips_are(shown: io.StringIO, tmp_path: Path) -> None:
    folder = tiny_families.save(tmp_path / "tiny-clips", "animatediff")
    (folder / "card.json").write_text('{"name": "clips", "frames": {"default": 3, "most": 10}}')
    models.check(str(folder), run=True, device="cpu", data_dir=tmp_path)
    said = shown.getvalue()
    assert "animatediff: supported" in said
    assert "3 (generates from 1 to 10)" in said
    assert "4×3×16×16" in said
    assert "generated 3 frames of 64x64 on cpu: loaded in " in said


def test_check_names_the_k_table_in_force_or_the_command_that_measures_one(
    sana: Path, shown: io.StringIO, tmp_path: Path
) -> None:
    def reuse(model: str, encoder: str | None = None) -> str:
        shown.truncate(shown.seek(0))
        models.check(model, encoder=encoder, data_dir=tmp_path)
        return " ".join(shown.getvalue().split()).partition("reuse ")[2].partition(" missing")[0]

    assert reuse("small") == "by small/learned_bound.json"
    run = f"run `afterimage profile --model {sana} --encoder bundled:clip`"
    none = "k_table: none counts for tiny-sana with this encoder (NIRVANA Fig. 10: it was measured with CLIP ViT-L/14)"
    assert reuse(str(sana)) == f"{none}; only exact repeats are reused; {run}"
    other = shutil.copytree(BUNDLED / "clip", tmp_path / "clip")
    (other / "config.json").write_text((other / "config.json").read_text() + "\n")
    assert f"only exact repeats are reused; run `afterimage profile --model small --encoder {other}`" in reuse(
        "small", encoder=str(other)
    )
    assert reuse("small", encoder="owner/none") == "not known: the encoder 'owner/none' is not on this disk"

    async def measure() -> None:
        catalog = await open_catalog(settings_from(data_dir=tmp_path).catalog_url)
        card = find_card(str(sana))
        table = KTable((Level(5, 0.9),), weights_hash=card.weights_hash, encoder_hash=encoder_hash(BUNDLED / "clip"))
        kind = profile_kind(settings_from().k_table_alpha)
        await catalog.profiles.put(kind, card.name, card.weights_hash, table_to_json(replace(table, alpha=0.95)))
        await catalog.close()

    asyncio.run(measure())
    assert reuse(str(sana)) == "by profile of tiny-sana, alpha 0.95"


def test_check_names_what_is_missing_before_it_complains(sana: Path, shown: io.StringIO, tmp_path: Path) -> None:
    copy = shutil.copytree(sana, tmp_path / "copy")
    (copy / "vae" / "config.json").unlink()
    with pytest.raises(ModelError, match=r"path: .*copy is not whole: missing vae/config\.json"):
        models.check(str(copy), data_dir=tmp_path)
    assert "vae/config.json" in shown.getvalue()


def test_weights_that_were_cut_short_are_listed_as_not_whole_and_checked_by_name(
    sana: Path, shown: io.StringIO, tmp_path: Path
) -> None:
    copy = shutil.copytree(sana, tmp_path / "copy")
    (path,) = (copy / "transformer").glob("*.safetensors")
    models.add(str(copy), name="cut", data_dir=tmp_path)
    models.add(str(sana), name="whole", data_dir=tmp_path)
    for left in (path.read_bytes()[:-100], b"{"):
        path.write_bytes(left)
        models.list_models(data_dir=tmp_path)
        lines = {line.split()[1]: line for line in shown.getvalue().splitlines() if line.startswith("│")}
        assert "not whole" in lines["cut"]
        assert "not whole" not in lines["whole"]
        with pytest.raises(ModelError, match=rf"is not whole: .*transformer/{path.name}: (cut short|not a whole)"):
            models.check("cut", data_dir=tmp_path)


def test_check_of_a_known_model_that_is_not_here_says_what_it_would_need(shown: io.StringIO, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not on this disk; `afterimage up` fetches it"):
        models.check("sd-3.5-large", offload="model", data_dir=tmp_path)
    said = " ".join(shown.getvalue().split())
    assert "denoiser 8,056.6 M · text encoders 5,580.6 M · VAE 83.8 M" in said
    assert "weights 25.6 GiB in bfloat16" in said
    assert "with offload=model" in said


def test_a_name_whose_folder_went_is_listed_and_hides_no_other(sana: Path, shown: io.StringIO, tmp_path: Path) -> None:
    copy = shutil.copytree(sana, tmp_path / "copy")
    models.add(str(copy), name="gone", data_dir=tmp_path)
    models.add(str(sana), name="here", data_dir=tmp_path)
    shutil.rmtree(copy)
    models.list_models(data_dir=tmp_path)
    lines = {line.split()[1]: line for line in shown.getvalue().splitlines() if line.startswith("│")}
    assert "`models check" in lines["gone"]
    assert {"large", "here", "sdxl"} <= set(lines)
    with pytest.raises(ModelError, match=r"path: 'noop:\?step_ms=1' "):
        models.add("noop:?step_ms=1", name="waits", data_dir=tmp_path)


def test_a_name_is_removed_and_nothing_else(sana: Path, shown: io.StringIO, tmp_path: Path) -> None:
    for name in ("mine", "again"):
        models.add(str(sana), name=name, data_dir=tmp_path)
    models.remove("mine", data_dir=tmp_path)
    said = shown.getvalue()
    assert f"removed the name mine; it was {sana}, which is also again" in said
    assert re.search(rf"nothing was deleted: {sana} has [\d.]+ [KM]iB, which deleting it would free", said)
    assert added.added(tmp_path) == {"again": str(sana)}
    assert find_card(str(sana)).family == "sana"
    models.add(str(sana), name="mine", data_dir=tmp_path)  # the name is free
    with pytest.raises(ModelError, match="name: 'large' ships with Afterimage and cannot be removed"):
        models.remove("large", data_dir=tmp_path)
    with pytest.raises(
        ModelError, match=r"name: 'sdxl' was not given by `models add` in .* \(there are: again, mine\)"
    ):
        models.remove("sdxl", data_dir=tmp_path)
    assert set(added.added(tmp_path)) == {"again", "mine"}


def test_names_of_bundled_models_and_wrong_paths_are_refused(sana: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="name: 'large' ships with Afterimage"):
        models.add(str(sana), name="large", data_dir=tmp_path)
    with pytest.raises(ModelError, match="not bundled:NAME"):
        models.add("./nowhere", data_dir=tmp_path)
    with pytest.raises(ModelError, match="name: must be lower-case"):
        models.add(str(sana), name="My Model", data_dir=tmp_path)
    assert find_card(str(sana)).family == "sana"
    assert not (tmp_path / "models.json").exists()
