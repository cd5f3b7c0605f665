"""Exported models are judged through the pipeline a user would open, and a judgement adds to its summary."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from services.trainer.clip_pair import tokenizer_at
from services.trainer.evaluation.drawing import prompt_pictures
from services.trainer.evaluation.judgement import write_judgement
from services.trainer.export import export_denoiser, export_judge
from services.trainer.judging.classifier import JudgeNet
from services.trainer.rendering.renderer import Renderer
from services.trainer.text_to_image.denoiser_training import DenoiserPlan, Run
from services.trainer.text_to_image.latents import Latents
from services.trainer.training import runs
from services.trainer.words import Words
from shared.runtime import progress as remaining
from tests.unit.trainer.conftest import SPRITES


@pytest.fixture
def models(work: Path, tmp_path: Path) -> Path:
    words = Words(tokenizer_at(work))
    Run("small", DenoiserPlan(), words, Latents(work / "latents", words), work).save()
    runs.save_checkpoint(work / "judge.pt", {"average": runs.Average([JudgeNet()]).state_dict()})
    export_denoiser(work, "small", tmp_path / "models" / "small")
    export_judge(work, tmp_path / "models" / "judge")
    return tmp_path / "models"


def test_a_prompt_is_drawn_with_its_own_seed(models: Path) -> None:
    both = prompt_pictures(models / "small", ["a fox in the snow", "two hats"], steps=2)
    assert both.shape == (2, 64, 64, 3)
    alone = prompt_pictures(models / "small", ["a fox in the snow"], steps=2)
    assert np.abs(both[0].astype(int) - alone[0].astype(int)).max() <= 1


def test_a_judgement_is_kept_beside_earlier_ones(
    models: Path,
    work: Path,
    tmp_path: Path,
    renderer: Renderer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remaining, "EVERY_S", 0.0)
    shutil.copytree(SPRITES, work / "sprites")
    out = tmp_path / "judged"
    write_judgement(["real"], work, models, out, count=4, steps=2)
    write_judgement(["small", "round-trip"], work, models, out, count=4, steps=2)
    said = capsys.readouterr().out
    assert all(f"judge: pictures of {name}: 7 of 7 (100.0%), " in said for name in ("real", "small", "round-trip"))
    assert "judge: what its bar must be …" in said
    summary = json.loads((out / "summary.json").read_text())
    assert set(summary) == {"bar", "real", "small", "round-trip"}
    assert summary["round-trip"]["seconds_per_picture"] > summary["real"]["seconds_per_picture"] > 0
    assert summary["real"]["object_by_template"] == 1.0
    assert summary["small"]["pictures"] == 4
    assert summary["small"]["seconds_per_picture"] > 0
    assert summary["small"]["guidance"] == 1.0  # what its card says
    assert set(summary["small"]["step_seconds"]) == {"1", "4"}
    assert "step_seconds" not in summary["real"]
    assert (out / "small.png").exists()
    assert isinstance(renderer, Renderer)
