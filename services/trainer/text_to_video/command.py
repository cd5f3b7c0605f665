"""`python -m services.trainer motion`: encode clips, train the motion model around an image model, export it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer

from services.trainer.export import export_judge, shipped_autoencoder
from services.trainer.judging.classifier_training import JudgePlan, train_judge_net
from services.trainer.judging.motion import moving_scenes
from services.trainer.rendering.renderer import Renderer
from services.trainer.text_to_video.export import export_motion
from services.trainer.text_to_video.latents import COUNT, PARTS, encode_clips
from services.trainer.text_to_video.training import MotionPlan, train_motion
from services.trainer.text_to_video.wordings import WordingsPlan, export_wordings, train_wordings
from shared.models.card_lookup import BUNDLED
from shared.models.devices import chosen_device
from shared.models.scenes import clip_caption

app = typer.Typer(no_args_is_help=True, help="Train the motion model: clips, then train, then export, then wordings")

Work = Annotated[Path, typer.Option(help="Folder of sprites, clips, checkpoint, losses and grids")]
Base = Annotated[Path, typer.Option(help="Exported image model that the motion model is built around")]
WORK = Path("out/train")
BASE = Path("shared/models/bundled/small")
Models = Annotated[Path, typer.Option(help="Folder of the shipped models")]
FRAMES_JUDGE = JudgePlan(steps=1000, seed=11, rate=1.5e-3, moving=0.6, judged=48)
"""Training of the judge of clips, from the judge of images."""
GRID = 16
"""Prompts of a grid: every motion twice."""


@app.command()
def clips(
    work: Work = WORK,
    base: Base = BASE,
    count: Annotated[int, typer.Option(min=1, help="Clips in a part")] = COUNT,
    part: Annotated[
        int | None,
        typer.Option(min=0, help=f"The one part to make, so that several run side by side; default: all {PARTS}"),
    ] = None,
) -> None:
    """Render and encode the clips that the motion model is trained on."""
    torch.set_num_threads(1)
    vae = shipped_autoencoder(base.parent)
    for each in range(PARTS) if part is None else [part]:
        encode_clips(vae, Renderer(work / "sprites"), work / "clips", count, each)


@app.command()
def train(
    work: Work = WORK,
    base: Base = BASE,
    steps: Annotated[int, typer.Option(min=1, help="Training steps over all runs")] = MotionPlan.steps,
    seconds: Annotated[
        float, typer.Option(min=1, help="Seconds of wall time over all runs after which training stops")
    ] = math.inf,
    seed: Annotated[int, typer.Option(help="Seed of batches and noise")] = MotionPlan.seed,
    rate: Annotated[float, typer.Option(help="Learning rate after the warm-up")] = MotionPlan.rate,
    batch: Annotated[int, typer.Option(min=1, help="Clips in a step")] = MotionPlan.batch,
    grids: Annotated[bool, typer.Option(help="Generate clips of held-out prompts now and then")] = True,
    device: Annotated[str, typer.Option(help="auto (a GPU if there is one), cpu, cuda, cuda:1 …")] = "auto",
) -> None:
    """Train the motion model on the stored clips; another run continues where this one stops."""
    torch.set_num_threads(1)
    plan = MotionPlan(steps=steps, seconds=seconds, seed=seed, rate=rate, batch=batch, device=chosen_device(device))
    if grids:
        plan = replace(plan, grid_prompts=tuple(clip_caption(one) for one in moving_scenes(GRID)))
    train_motion(plan, base, work, shipped_autoencoder(base.parent) if grids else None)


@app.command(name="judge-net")
def judge_net(
    work: Work = WORK,
    models: Models = BUNDLED,
    steps: Annotated[int, typer.Option(min=1, help="Training steps over all runs")] = FRAMES_JUDGE.steps,
    target: Annotated[Path | None, typer.Option(help="Folder to write; default: clip-judge beside the models")] = None,
) -> None:
    """Train the images' judge further on frames of moving scenes, and write it as the judge of clips."""
    plan, name = replace(FRAMES_JUDGE, steps=steps), "clip-judge"
    train_judge_net(plan, shipped_autoencoder(models), work / "sprites", work, models / "judge", name=name)
    export_judge(work, target or models / name, name)


@app.command()
def export(
    target: Annotated[Path, typer.Argument(help="Folder to write: an AnimateDiffPipeline with its card")],
    work: Work = WORK,
    base: Base = BASE,
) -> None:
    """Write the trained model in the format of the bundled ones; serve it with `--video FOLDER`."""
    export_motion(work, base, target)


@app.command()
def wordings(
    target: Annotated[Path, typer.Argument(help="Folder to write: the model with its text encoder trained further")],
    model: Annotated[Path, typer.Option(help="Exported motion model")] = BUNDLED / "motion",
    work: Work = WORK,
    steps: Annotated[int, typer.Option(min=1, help="Training steps over all runs")] = WordingsPlan.steps,
) -> None:
    """Teach an exported model other words for motions and places; another run continues where this one stops."""
    if any(one.resolve().is_relative_to(target.resolve()) for one in (model, work)):
        raise typer.BadParameter("must be a folder of its own: it is replaced, with all it holds", param_hint="TARGET")
    torch.set_num_threads(1)
    train_wordings(WordingsPlan(steps=steps), model, work)
    export_wordings(model, work, target)
