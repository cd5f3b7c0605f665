"""Checkpoints by hub id: fetched once, found without asking, and what is said when they cannot be had."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import structlog

from shared.domain.errors import ModelError
from shared.models import find_card, hub, served_card, weights_hash
from shared.models.card_lookup import BUNDLED
from shared.models.folders import transformers_folder
from shared.runtime.settings import Settings
from tests import tiny_families
from tests.unit.models.hub_server import Hub, serving

SANA = "somebody/Tiny-Sana"


@pytest.fixture(scope="module")
def sana(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As published: with variants, pickles and a single-file checkpoint beside what is loaded."""
    folder = tiny_families.save(tmp_path_factory.mktemp("hub") / "sana", "sana")
    for name in ("vae/diffusion_pytorch_model.fp16.safetensors", "transformer/pytorch_model.bin", "all.safetensors"):
        (folder / name).write_bytes(b"not for us")
    (folder / "README.md").write_text("# A model card")
    return folder


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with serving(monkeypatch, tmp_path / "cache") as running:
        yield running


def noted(logs: Sequence[Mapping[str, Any]]) -> list[str]:
    return [one["pinned"] for one in logs if one["event"] == "fetched the hub's main"]


def test_a_hub_id_is_fetched_once_and_then_found_without_the_hub(server: Hub, sana: Path, tmp_path: Path) -> None:
    server.repositories[SANA] = sana
    settings = Settings(data_dir=tmp_path / "data", large=SANA)
    assert find_card(SANA).family == ""  # nobody was asked
    card = served_card(settings)
    assert (card.family, card.latent_channels, card.path) == ("sana", 8, SANA)
    assert not any(name.endswith(".safetensors") for name in server.given)  # its configurations tell
    with structlog.testing.capture_logs() as logs:
        folder = card.folder
    assert noted(logs) == [f"{SANA}@{folder.name}"]
    assert sorted(name for name in server.given if name.endswith((".safetensors", ".bin"))) == [
        "text_encoder/model.safetensors",
        "transformer/diffusion_pytorch_model.safetensors",
        "vae/diffusion_pytorch_model.safetensors",
    ]
    server.shutdown()
    again = served_card(settings)
    assert (again.folder, again.family, again.name) == (folder, "sana", "tiny-sana")
    assert again.weights_hash == weights_hash(sana)


def test_a_revision_is_pinned(server: Hub, sana: Path, tmp_path: Path) -> None:
    server.repositories[SANA] = sana
    pinned = "9" * 40
    server.revisions["v1"] = pinned
    with structlog.testing.capture_logs() as logs:
        tagged = served_card(Settings(data_dir=tmp_path, large=f"{SANA}@v1"))
        assert tagged.folder
    assert not noted(logs)
    assert (tagged.name, tagged.folder.name) == ("tiny-sana", pinned)
    server.shutdown()
    assert served_card(Settings(data_dir=tmp_path, large=f"{SANA}@{pinned}")).folder == tagged.folder
    assert hub.cached(SANA) is None  # main was never fetched
    known = find_card("stabilityai/stable-diffusion-3.5-large@v1")
    assert (known.path, known.default_steps) == ("stabilityai/stable-diffusion-3.5-large@v1", 28)


def test_an_encoder_without_a_revision_stays_the_one_of_the_first_download(server: Hub, tmp_path: Path) -> None:
    server.repositories["somebody/clip"] = BUNDLED / "clip"
    with structlog.testing.capture_logs() as logs:
        folder = transformers_folder("somebody/clip", "encoder")
    assert noted(logs) == [f"somebody/clip@{folder.name}"]
    server.revisions |= {"v1": "9" * 40, "main": "8" * 40, "before": folder.name}
    (folder / "tokenizer.json").unlink()  # the download was interrupted
    with structlog.testing.capture_logs() as logs:
        assert transformers_folder("somebody/clip", "encoder") == folder
        assert (folder / "tokenizer.json").is_file()
        assert transformers_folder("somebody/clip@v1", "encoder").name == "9" * 40
    assert not noted(logs)
    server.shutdown()
    server.server_close()
    begun = time.monotonic()
    assert transformers_folder("somebody/clip", "encoder") == folder
    assert time.monotonic() - begun < 5.0  # the hub's client would try for half a minute


def test_a_revision_that_the_hub_does_not_have_is_said(server: Hub, sana: Path, tmp_path: Path) -> None:
    server.repositories[SANA] = sana
    with pytest.raises(ModelError, match=f"the hub's '{SANA}' has no revision 'v2'"):
        served_card(Settings(data_dir=tmp_path, large=f"{SANA}@v2"))


def test_what_the_hub_will_not_give_is_said(server: Hub, sana: Path, tmp_path: Path) -> None:
    server.repositories["somebody/Gated"] = sana
    server.gated.add("somebody/Gated")
    with pytest.raises(
        ModelError, match=r"model 'gated': path: 'somebody/Gated' is gated: accept its terms .*HF_TOKEN"
    ):
        _ = find_card("somebody/Gated").folder
    with pytest.raises(ModelError, match=r"model 'nothing': path: the hub has no 'somebody/Nothing'"):
        served_card(Settings(data_dir=tmp_path, large="somebody/Nothing"))
    single = tmp_path / "single"
    single.mkdir()
    (single / "model.safetensors").write_bytes(b"everything in one file")
    server.repositories["somebody/Single"] = single
    with pytest.raises(ModelError, match=r"'somebody/Single' has no model_index\.json"):
        _ = find_card("somebody/Single").folder


def test_an_unsupported_one_is_said_before_its_weights_are_fetched(server: Hub, sana: Path, tmp_path: Path) -> None:
    other = shutil.copytree(sana, tmp_path / "other")
    index = json.loads((other / "model_index.json").read_text()) | {"_class_name": "PixArtSigmaPipeline"}
    (other / "model_index.json").write_text(json.dumps(index))
    server.repositories["somebody/PixArt"] = other
    rule = r"model_index\.json: _class_name must be one of .*SanaPipeline.* \(got 'PixArtSigmaPipeline'\)"
    with pytest.raises(ModelError, match=rule):
        served_card(Settings(data_dir=tmp_path, large="somebody/PixArt"))
    with pytest.raises(ModelError, match=rule):
        find_card(str(other))
    assert not any(name.endswith(".safetensors") for name in server.given)


def test_a_hub_that_is_away_is_said_with_what_is_missing_here(server: Hub, sana: Path, tmp_path: Path) -> None:
    server.repositories[SANA] = sana
    hub.configurations(SANA, "tiny-sana")
    server.shutdown()
    server.server_close()
    with pytest.raises(ModelError, match=r"'somebody/Tiny-Sana' .*vae/\*\.safetensors"):
        _ = find_card(SANA).folder
    with pytest.raises(ModelError, match=r"'somebody/Other' is not on this disk and cannot be fetched"):
        _ = find_card("somebody/Other").folder


def test_a_blob_that_the_cache_names_by_its_hash_is_not_read_again(server: Hub, sana: Path) -> None:
    server.repositories[SANA] = sana
    folder = hub.checkpoint(SANA, "tiny-sana")
    weights = folder / "vae" / "diffusion_pytorch_model.safetensors"
    assert weights.is_symlink()
    before = weights_hash(folder)
    assert before == weights_hash(sana)
    blob = weights.resolve()
    blob.chmod(0o644)
    blob.write_bytes(bytes(len(blob.read_bytes())))  # its name still says what it was: nobody looked inside
    assert weights_hash(folder) == before
