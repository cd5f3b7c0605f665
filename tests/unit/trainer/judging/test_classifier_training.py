"""The classifier's training lowers its loss, goes on from a checkpoint, and is begun from an exported judge."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import torch

from services.trainer.export import export_judge
from services.trainer.judging.classifier import judge_weights
from services.trainer.judging.classifier_training import JudgePlan, train_judge_net
from services.trainer.rendering.renderer import Renderer
from services.trainer.text_to_image.autoencoder import new_autoencoder
from services.trainer.training import runs
from tests.unit.trainer.conftest import SPRITES


def test_it_learns_resumes_and_begins_from_an_export(tmp_path: Path, renderer: Renderer) -> None:
    assert isinstance(renderer, Renderer)  # or it is skipped, where there are no sprites
    work, vae = tmp_path / "work", new_autoencoder().eval()
    plan = JudgePlan(steps=100, batch=4, round_trips=0.0, blurred=0.0, judged=4)
    sprites = shutil.copytree(SPRITES, work / "sprites")
    train_judge_net(JudgePlan(steps=60, batch=4, round_trips=0.5, blurred=0.5, judged=4), vae, sprites, work)
    assert runs.steps_done(work / "judge.pt") == 60
    train_judge_net(plan, vae, sprites, work)
    assert runs.steps_done(work / "judge.pt") == 100
    with (work / "judge-losses.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["light"]) < 1.09  # nats: chance among three lights is 1.10
    assert (work / "judge-losses.png").exists()
    export_judge(work, tmp_path / "judge")
    train_judge_net(JudgePlan(steps=1, batch=4, judged=4), vae, sprites, tmp_path / "again", start=tmp_path / "judge")
    begun = runs.load_checkpoint(tmp_path / "again" / "judge.pt")
    assert begun is not None
    exported = judge_weights(tmp_path / "judge")
    for name, tensor in begun["model"].items():
        torch.testing.assert_close(tensor, exported[name], atol=1e-3, rtol=0)
