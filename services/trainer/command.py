"""`python -m services.trainer`: train, export and judge the bundled models; every stage resumes after a kill."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer

from services.trainer import recipe
from services.trainer.clip_motions import MotionWordsPlan, export_motion_words, train_motion_words
from services.trainer.clip_pair import PairPlan, train_pair
from services.trainer.evaluation.drawing import prompt_pictures
from services.trainer.evaluation.judgement import write_judgement
from services.trainer.evaluation.strange_words import measure_strange_words
from services.trainer.export import autoencoder_at, export_denoiser, export_judge, export_pair
from services.trainer.extraction.command import app as extractor
from services.trainer.judging.classifier_training import JudgePlan, train_judge_net
from services.trainer.judging.scenes import grid_prompts
from services.trainer.plots import write_plots
from services.trainer.rendering.renderer import Renderer
from services.trainer.segmentation.command import app as segmenter
from services.trainer.text_to_image.architecture import SHAPES
from services.trainer.text_to_image.autoencoder import AutoencoderPlan, train_autoencoder
from services.trainer.text_to_image.denoiser_training import OPTIMIZERS, DenoiserPlan
from services.trainer.text_to_image.latents import COUNT, PARTS, encode_parts
from services.trainer.text_to_video.command import app as motion
from services.trainer.training import runs
from services.trainer.workers import train_in_workers
from shared.domain.errors import AfterimageError
from shared.models.card_lookup import SHIPPED
from shared.models.devices import chosen_device

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
app.add_typer(motion, name="motion")
app.add_typer(extractor, name="extractor")
app.add_typer(segmenter, name="segmenter")

Work = Annotated[Path, typer.Option(help="Folder of sprites, checkpoints, latents, losses and grids")]
Steps = Annotated[int, typer.Option(min=1, help="Training steps over all runs")]
Seconds = Annotated[float, typer.Option(help="Seconds of wall time over all runs after which training stops", min=1)]
Seed = Annotated[int, typer.Option(help="Seed of weights, scenes and noise")]
Rate = Annotated[float, typer.Option(help="Learning rate after the warm-up")]
Start = Annotated[
    Path | None,
    typer.Option(help="Exported weights to begin with if there is no checkpoint, with a fresh optimizer"),
]
Device = Annotated[str, typer.Option(help="auto (a GPU if there is one), cpu, cuda, cuda:1 …")]
Models = Annotated[Path, typer.Option(help="Folder of the bundled models")]
Threads = Annotated[int, typer.Option(min=1, help="Processor threads")]

EXPORTED = ("clip", "judge", *SHAPES)
JUDGED = ("real", "round-trip", "clip", *SHAPES)
WORK = Path("out/train")
MODELS = Path("shared/models/bundled")


@app.command(name="all")
def everything(
    work: Work = WORK,
    models: Annotated[Path, typer.Option(help="Folder to write the models to")] = WORK / "models",
    share: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the steps and scenes; .0005 rehearses every stage in minutes")
    ] = 1.0,
    device: Device = "auto",
) -> None:
    """Train every model with the recipe of the shipped ones, stage by stage; another run continues where this one
    stops."""
    recipe.follow(recipe.stages(work, models, torch.device(chosen_device(device)), share))


@app.command()
def vae(
    work: Work = WORK,
    steps: Steps = AutoencoderPlan.steps,
    seconds: Seconds = math.inf,
    seed: Seed = AutoencoderPlan.seed,
    start: Start = None,
    device: Device = "auto",
) -> None:
    """Train the shared autoencoder."""
    plan = AutoencoderPlan(steps=steps, seconds=seconds, seed=seed)
    train_autoencoder(plan, work / "sprites", work, start, torch.device(chosen_device(device)))


@app.command()
def clip(
    work: Work = WORK,
    steps: Steps = PairPlan.steps,
    seconds: Seconds = math.inf,
    seed: Seed = PairPlan.seed,
    rate: Rate = PairPlan.rate,
    start: Start = None,
    device: Device = "auto",
) -> None:
    """Train the CLIP-style pair (and its tokenizer, at the first run)."""
    plan = PairPlan(steps=steps, seconds=seconds, seed=seed, rate=rate)
    train_pair(plan, work / "sprites", work, start, torch.device(chosen_device(device)))


@app.command()
def clip_motions(
    work: Work = WORK,
    models: Models = MODELS,
    steps: Steps = MotionWordsPlan.steps,
    seed: Seed = MotionWordsPlan.seed,
) -> None:
    """Teach the trained pair the words of motions, and write it to WORK/models/clip; no other vector changes."""
    torch.set_num_threads(1)
    pair = models / "clip"
    for kind, (low, middle, high) in train_motion_words(MotionWordsPlan(steps=steps, seed=seed), work, pair).items():
        runs.log.info("cosine of two prompts", difference=kind, p10=low, p50=middle, p90=high)
    export_motion_words(work, pair, work / "models" / "clip")


@app.command()
def latents(
    work: Work = WORK,
    count: Annotated[
        int, typer.Option(min=1, help="Scenes of 64×64 in a part; an eighth as many of each other size")
    ] = COUNT,
    part: Annotated[
        int | None,
        typer.Option(
            min=0, help=f"The one part to make, so that several run side by side; default: all {PARTS} in turn"
        ),
    ] = None,
    device: Device = "auto",
) -> None:
    """Render and encode the scenes that denoisers are trained on."""
    torch.set_num_threads(1)
    model = autoencoder_at(work).to(torch.device(chosen_device(device)), memory_format=torch.channels_last)
    encode_parts(model, Renderer(work / "sprites"), work / "latents", count, range(PARTS) if part is None else [part])


@app.command()
def denoiser(
    name: Annotated[str, typer.Argument(help="large or small")],
    work: Work = WORK,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps over all runs; default: the recipe's")
    ] = None,
    seconds: Seconds = math.inf,
    seed: Seed = DenoiserPlan.seed,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Single-thread processes averaging their weights; default 2 for large, 1 for small"),
    ] = None,
    optimizer: Annotated[str, typer.Option(help=" or ".join(OPTIMIZERS))] = DenoiserPlan.optimizer,
    batch: Annotated[int, typer.Option(min=1, help="Scenes of 64×64 in a worker's step; fewer of larger sizes")] = (
        DenoiserPlan.batch
    ),
    rate: Rate = DenoiserPlan.rate,
    other_sizes: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Share of the steps on other sizes than 64×64; default: the recipe's"),
    ] = None,
    timestep_centre: Annotated[
        float | None,
        typer.Option(
            help="Centre (before the sigmoid) of two thirds of the timesteps; lower: details; default: the recipe's"
        ),
    ] = None,
    teacher: Annotated[Path, typer.Option(help="Exported model that `small` learns from")] = MODELS / "large",
    start: Start = None,
    device: Device = "auto",
) -> None:
    """Train `large` on the stored latents, or distil `large` with guidance into `small`, phase by phase."""
    _known([name], SHAPES)
    _known([optimizer], OPTIMIZERS, "--optimizer")
    plans = recipe.denoiser_plans(name, seed)
    if any(
        asked is not None for asked in (steps, other_sizes, timestep_centre)
    ):  # one phase, with the caller's options
        share = DenoiserPlan.other_sizes if other_sizes is None else other_sizes
        centre = DenoiserPlan.timestep_centre if timestep_centre is None else timestep_centre
        plans = [replace(plans[-1], steps=steps or plans[-1].steps, other_sizes=share, timestep_centre=centre)]
    for plan in plans:
        if runs.steps_done(work / f"{name}.pt") < plan.steps:
            asked = replace(plan, seconds=seconds, optimizer=optimizer, batch=batch, rate=rate)
            count = workers or recipe.WORKERS[name]
            train_in_workers(name, asked, work, count, teacher, start, torch.device(chosen_device(device)))


@app.command()
def export(
    names: Annotated[list[str], typer.Argument(help="Any of clip, judge, large, small")],
    work: Work = WORK,
    models: Models = MODELS,
) -> None:
    """Write trained models in the format of the shipped ones."""
    _known(names, EXPORTED)
    for name in names:
        if name == "clip":
            export_pair(work, models / name)
        elif name == "judge":
            export_judge(work, models / name)
        else:
            export_denoiser(work, name, models / name)


@app.command(name="judge-net")
def judge_net(
    work: Work = WORK,
    steps: Steps = JudgePlan.steps,
    seconds: Seconds = math.inf,
    seed: Seed = JudgePlan.seed,
    start: Start = None,
    device: Device = "auto",
) -> None:
    """Train the judge's classifier."""
    plan = JudgePlan(steps=steps, seconds=seconds, seed=seed)
    train_judge_net(plan, autoencoder_at(work), work / "sprites", work, start, torch.device(chosen_device(device)))


@app.command()
def judge(
    names: Annotated[list[str], typer.Argument(help="Any of real, round-trip, clip, large, small")],
    work: Work = WORK,
    models: Models = MODELS,
    out: Annotated[Path, typer.Option(help="Folder for summary.json and a grid per model")] = Path("out/judge"),
    count: Annotated[int, typer.Option(min=4, help="Different scenes per model, a quarter of them at each size")] = 256,
    steps: Annotated[int, typer.Option(min=1, help="Denoising steps per image")] = 50,
    guidance: Annotated[float | None, typer.Option(help="Guidance; default: that of each model's card")] = None,
    threads: Threads = 2,
) -> None:
    """Judge exported models on held-out prompts, and the judge itself on real renders; adds to `summary.json`."""
    _known(names, JUDGED)
    torch.set_num_threads(threads)
    write_judgement(names, work, models, out, count, steps, guidance)


@app.command(name="strange-words")
def strange_words(
    names: Annotated[list[str], typer.Argument(help="Any of large, small")],
    work: Work = WORK,
    models: Models = MODELS,
    out: Annotated[Path, typer.Option(help="Folder for strange-words.json")] = Path("out/judge"),
    count: Annotated[
        int, typer.Option(min=1, help="Number of captions; each is used with every number of strange words")
    ] = 64,
    threads: Threads = 2,
) -> None:
    """Measure the effect of unknown words in a prompt: scores by the number of such words."""
    _known(names, SHAPES)
    torch.set_num_threads(threads)
    measure_strange_words(names, work, models, out, count)


@app.command()
def grid(
    name: Annotated[str, typer.Argument(help="large or small")],
    target: Annotated[Path, typer.Argument(help="File of the image")],
    models: Models = MODELS,
    count: Annotated[int, typer.Option(min=1, max=48, help="Number of the 48 fixed prompts")] = 48,
    columns: Annotated[int, typer.Option(min=1, help="Images per row")] = 8,
) -> None:
    """Generate the fixed held-out prompts with an exported model, uncurated, one seed each, and print the prompts."""
    _known([name], SHAPES)
    torch.set_num_threads(2)
    prompts = grid_prompts()[:count]
    pictures = prompt_pictures(models / name, prompts, guidance=SHIPPED[name].default_guidance)
    runs.save_grid(list(pictures), columns, target, scale=2)
    for number, prompt in enumerate(prompts, 1):
        typer.echo(f"{number:2} {prompt}")


@app.command()
def plots(
    models: Models = MODELS,
    out: Annotated[Path, typer.Option(help="Folder for the plots")] = Path("docs/models"),
) -> None:
    """Plot the latency profiles and the K tables in the models' folders."""
    write_plots(models, out)


def _known(names: Iterable[str], allowed: Collection[str], field: str = "name") -> None:
    """Raise BadParameter for the first of `names` that is not in `allowed`, before anything is fetched or generated."""
    for name in names:
        if name not in allowed:
            raise typer.BadParameter(f"must be one of {', '.join(allowed)}, not {name!r}", param_hint=field)


def main() -> None:
    """Run the command line."""
    try:
        app()
    except AfterimageError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from None
