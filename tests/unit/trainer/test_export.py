"""What is exported loads as any hub checkpoint does, and is the model that was trained."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers import StableDiffusionPipeline
from transformers import CLIPModel, CLIPTokenizer

from services.trainer.clip_pair import embed_text, pair_config, tokenizer_at
from services.trainer.export import export_denoiser, export_judge, export_pair, trained_denoiser
from services.trainer.judging.classifier import JudgeNet, load_judge
from services.trainer.text_to_image.denoiser_training import DenoiserPlan, Run
from services.trainer.text_to_image.latents import Latents
from services.trainer.training import runs
from services.trainer.words import Words
from shared.domain.errors import NotFoundError
from shared.models import find_card
from shared.models.card_lookup import BUNDLED, SHIPPED
from shared.models.scenes import VALUES


def test_a_denoiser_is_a_stable_diffusion_pipeline(work: Path, tmp_path: Path) -> None:
    words = Words(tokenizer_at(work))
    Run("small", DenoiserPlan(), words, Latents(work / "latents", words), work).save()
    target = tmp_path / "bundled" / "small"
    export_denoiser(work, "small", target)
    assert not list(target.rglob("*.bin"))
    assert (
        find_card(str(target)) == find_card("small", root=target.parent) == replace(SHIPPED["small"], path=str(target))
    )
    pipeline = StableDiffusionPipeline.from_pretrained(target, torch_dtype=torch.float32, safety_checker=None)
    pipeline.set_progress_bar_config(disable=True)

    model = trained_denoiser(work, "small")
    latents, timesteps = torch.randn(2, 4, 16, 24), torch.tensor([10, 900])
    tokens = torch.tensor([words.ids("a fox in the snow"), words.ids("")])
    states = pipeline.text_encoder(tokens)[0]
    found = pipeline.unet(latents, timesteps, encoder_hidden_states=states).sample
    assert torch.allclose(found, model(latents, timesteps, tokens), atol=0.01)  # half-precision weights

    picture = pipeline("a fox in the snow", width=96, height=64, num_inference_steps=2, output_type="np").images
    assert picture.shape == (1, 64, 96, 3)
    assert pipeline.scheduler.config.prediction_type == "v_prediction"


def test_an_export_names_no_folder_of_the_machine_it_was_made_on(work: Path, tmp_path: Path) -> None:
    words = Words(tokenizer_at(work))
    Run("small", DenoiserPlan(), words, Latents(work / "latents", words), work).save()
    (work / "vae.pt").unlink(missing_ok=True)  # so that the autoencoder is the one that ships
    export_denoiser(work, "small", tmp_path / "small")
    written = {path: path.read_text() for path in (tmp_path / "small").rglob("*.json")}
    assert tmp_path / "small" / "vae" / "config.json" in written
    assert not [path for path, text in written.items() if "_name_or_path" in text or str(BUNDLED) in text]


def test_an_export_replaces_the_last_one_whole(work: Path, tmp_path: Path) -> None:
    words = Words(tokenizer_at(work))
    Run("small", DenoiserPlan(), words, Latents(work / "latents", words), work).save()
    target = tmp_path / "small"
    target.mkdir()
    (target / "stale").write_text("from another version")
    export_denoiser(work, "small", target)
    assert not (target / "stale").exists()
    assert [path.name for path in tmp_path.glob("small*") if path.is_dir()] == ["small"]


def test_an_export_after_one_that_was_killed_keeps_what_was_written_of_the_model(work: Path, tmp_path: Path) -> None:
    words = Words(tokenizer_at(work))
    Run("small", DenoiserPlan(), words, Latents(work / "latents", words), work).save()
    old = tmp_path / "small.old"  # the last one's folder, set aside when the kill came
    old.mkdir()
    (old / "README.md").write_text("what it draws")
    export_denoiser(work, "small", tmp_path / "small")
    assert (tmp_path / "small" / "README.md").read_text() == "what it draws"
    assert not old.exists()


def test_a_pair_is_a_clip_model_with_the_words_it_knows(work: Path, tmp_path: Path) -> None:
    words = Words(tokenizer_at(work))
    model = CLIPModel(pair_config(words)).eval()
    runs.save_checkpoint(work / "clip.pt", {"average": runs.Average([model]).state_dict()})
    target = tmp_path / "clip"
    export_pair(work, target)
    loaded, tokenizer = CLIPModel.from_pretrained(target), CLIPTokenizer.from_pretrained(target)
    texts = ["a fox in the snow", "three hats"]
    ours, theirs = embed_text(model, words, texts), embed_text(loaded.float(), Words(tokenizer), texts)
    assert torch.allclose(ours, theirs, atol=5e-3)
    known = json.loads((target / "known_words.json").read_text())
    assert {"fox", "foxes", "watercolour", "snow"} <= set(known["words"])
    assert "zebra" not in known["words"]


def test_a_judge_reads_values_and_refuses_another_grammar(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = JudgeNet()
    assert sum(p.numel() for p in net.parameters()) < 500_000
    runs.save_checkpoint(work / "judge.pt", {"average": runs.Average([net]).state_dict()})
    export_judge(work, tmp_path / "judge")
    judge = load_judge(tmp_path / "judge")
    said = judge(torch.randint(0, 255, (3, 64, 96, 3), dtype=torch.uint8).numpy())
    assert set(said) == set(VALUES)
    assert all(len(values) == 3 and values[0] in map(str, VALUES[name]) for name, values in said.items())
    monkeypatch.setattr("services.trainer.judging.classifier.VALUES", {**VALUES, "count": (1, 2)})
    with pytest.raises((ValueError, RuntimeError)):
        load_judge(tmp_path / "judge")


def test_nothing_trained_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"large\.pt"):
        trained_denoiser(tmp_path, "large")
