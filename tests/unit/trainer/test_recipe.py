"""Every stage of the recipe runs after the other, at a sliver of its length, and a second call finds all of it done."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers import StableDiffusionPipeline
from typer.testing import CliRunner

from services.trainer import command, recipe
from services.trainer.export import autoencoder_at, shipped_autoencoder
from services.trainer.judging.classifier import load_judge
from services.trainer.rendering.renderer import Renderer
from services.trainer.training import runs
from tests.unit.trainer.conftest import SPRITES

CPU = torch.device("cpu")


def test_the_whole_recipe_at_a_sliver_of_its_length(tmp_path: Path, renderer: Renderer) -> None:
    assert isinstance(renderer, Renderer)  # or it is skipped, where there are no sprites
    work, models = tmp_path / "work", tmp_path / "models"
    shutil.copytree(SPRITES, work / "sprites")
    asked = ["all", "--work", str(work), "--models", str(models), "--share", "0.0003", "--device", "cpu"]
    done = CliRunner().invoke(command.app, asked)
    assert done.exit_code == 0, done.output
    assert [runs.steps_done(work / f"{name}.pt") for name in ("vae", "clip", "judge")] == [2, 1, 1]
    assert runs.steps_done(work / "large.pt") == 4  # two workers only stop where they meet
    assert runs.steps_done(work / "small.pt") == 3
    for name in ("large", "small"):
        pipeline = StableDiffusionPipeline.from_pretrained(models / name, safety_checker=None)
        assert pipeline.unet.config.sample_size == 16
    load_judge(models / "judge")
    assert json.loads((models / "clip" / "known_words.json").read_text())["words"]
    assert all(stage.finished() for stage in recipe.stages(work, models, CPU, share=0.0003))
    assert not any(stage.finished() for stage in recipe.stages(work, models, CPU)[:5])  # of all its length
    before = (work / "large.pt").stat().st_mtime_ns
    assert CliRunner().invoke(command.app, asked).exit_code == 0
    assert (work / "large.pt").stat().st_mtime_ns == before


def test_commands_default_to_the_recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, object, int]] = []

    def note(name: str, plan: object, work: Path, workers: int, *rest: object) -> None:
        asked.append((name, plan, workers))

    monkeypatch.setattr(command, "train_in_workers", note)
    for name in ("large", "small"):
        done = CliRunner().invoke(command.app, ["denoiser", name, "--work", str(tmp_path)])
        assert done.exit_code == 0, done.output
    assert asked == [("large", plan, 2) for plan in recipe.denoiser_plans("large")] + [
        ("small", plan, 1) for plan in recipe.denoiser_plans("small")
    ]
    assert [(plan.steps, plan.other_sizes, plan.timestep_centre) for _, plan, _ in asked] == [  # type: ignore[attr-defined]
        (2839, 0.22, 0.25),
        (8339, 0.5, -0.2),
        (4150, 0.22, 0.25),
        (6550, 0.4, 0.25),
        (9550, 0.4, -0.2),
    ]
    asked.clear()
    CliRunner().invoke(command.app, ["denoiser", "small", "--work", str(tmp_path), "--steps", "7"])
    assert asked == [
        ("small", replace(recipe.denoiser_plans("small")[-1], steps=7, other_sizes=0.22, timestep_centre=0.25), 1)
    ]


def test_every_option_says_what_it_is() -> None:
    import typer

    commands = typer.main.get_command(command.app).commands  # type: ignore[attr-defined]  # a group has them
    for name, one in commands.items():
        for parameter in one.params:
            assert getattr(parameter, "help", None), f"{name} {parameter.name}"


def test_where_no_autoencoder_was_trained_the_one_that_ships_encodes(tmp_path: Path) -> None:
    ours, shipped = autoencoder_at(tmp_path).state_dict(), shipped_autoencoder().state_dict()
    assert all(torch.equal(ours[name], shipped[name]) for name in shipped)


def test_an_optimizer_that_nobody_knows_is_refused_by_name(tmp_path: Path) -> None:
    asked = ["denoiser", "large", "--optimizer", "sgd", "--work", str(tmp_path)]
    done = CliRunner().invoke(command.app, asked, env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code == 2
    assert "Invalid value for --optimizer: must be one of muon, adamw, not 'sgd'" in done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [["judge", "huge"], ["strange-words", "clip"], ["export", "large", "huge"], ["grid", "clip", "x.png"]],
    ids=lambda arguments: arguments[0],
)
def test_a_name_that_no_model_has_is_refused_before_anything_is_done(arguments: list[str], tmp_path: Path) -> None:
    more = [] if arguments[0] == "grid" else ["--work", str(tmp_path)]
    done = CliRunner().invoke(command.app, [*arguments, *more], env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code == 2
    assert f"must be one of {'clip, judge, ' if arguments[0] == 'export' else ''}" in done.output
    assert list(tmp_path.iterdir()) == []
