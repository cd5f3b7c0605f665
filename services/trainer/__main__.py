"""`python -m services.trainer` — trains, exports and judges the bundled models; any stage may be killed and resumed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated

import torch
import typer

from services.trainer import runs
from services.trainer.autoencoder import AutoencoderPlan, train_autoencoder
from services.trainer.clip_pair import PairPlan, train_pair
from services.trainer.denoiser import SHAPES, DenoiserPlan
from services.trainer.drawing import prompt_pictures
from services.trainer.evaluation import COUNT
from services.trainer.export import export_denoiser, export_judge, export_pair, trained_autoencoder
from services.trainer.judge_training import JudgePlan, train_judge_net
from services.trainer.judgement import write_judgement
from services.trainer.latents import encode_scenes
from services.trainer.renderer import SIZES, Renderer
from services.trainer.workers import train_in_workers
from shared.devices import chosen_device
from shared.models.card import SHIPPED
from shared.scenes import WORDINGS, caption, held_out, random_scene

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)

Work = Annotated[Path, typer.Option(help="Folder of sprites, checkpoints, latents, losses and grids")]
Seconds = Annotated[float, typer.Option(help="Wall time to train for, all runs together, seconds")]
Seed = Annotated[int, typer.Option(help="Seed of weights, scenes and noise")]

Start = Annotated[
    Path | None,
    typer.Option(help="Exported weights to begin with where there is no checkpoint, with a fresh optimizer"),
]
Device = Annotated[str, typer.Option(help="auto (a GPU where there is one), cpu, cuda, cuda:1 …")]
Models = Annotated[Path, typer.Option(help="Folder of the bundled models")]

WORK = Path("out/train")
MODELS = Path("shared/models/bundled")


@app.command()
def vae(
    work: Work = WORK, seconds: Seconds = 720, seed: Seed = 0, start: Start = None, device: Device = "auto"
) -> None:
    """Train the shared autoencoder."""
    plan = AutoencoderPlan(seconds=seconds, seed=seed)
    train_autoencoder(plan, work / "sprites", work, start, torch.device(chosen_device(device)))


@app.command()
def clip(
    work: Work = WORK,
    seconds: Seconds = 3600,
    seed: Seed = 1,
    rate: float = PairPlan.rate,
    start: Start = None,
    device: Device = "auto",
) -> None:
    """Train the CLIP-style pair (and its tokenizer, at the first run)."""
    plan = PairPlan(seconds=seconds, seed=seed, rate=rate)
    train_pair(plan, work / "sprites", work, start, torch.device(chosen_device(device)))


@app.command()
def latents(work: Work = WORK, count: int = 60_000, part: int = 0, device: Device = "auto") -> None:
    """Render and encode scenes: `count` of 64×64, and an eighth as many of each other size."""
    torch.set_num_threads(1)
    model = trained_autoencoder(work).to(torch.device(chosen_device(device)), memory_format=torch.channels_last)
    renderer = Renderer(work / "sprites")
    for size in SIZES:
        encode_scenes(model, renderer, work / "latents", size, count if size == SIZES[0] else count // 8, part)
    runs.log.info("latents done", part=part)


@app.command()
def denoiser(
    name: Annotated[str, typer.Argument(help="large or small")],
    work: Work = WORK,
    seconds: Seconds = 5400,
    seed: Seed = 2,
    workers: Annotated[int, typer.Option(help="Single-thread processes that average their weights; one on a GPU")] = 2,
    optimizer: Annotated[str, typer.Option(help="muon or adamw")] = DenoiserPlan.optimizer,
    batch: int = DenoiserPlan.batch,
    rate: float = DenoiserPlan.rate,
    other_sizes: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the steps on other sizes than 64×64")
    ] = DenoiserPlan.other_sizes,
    teacher: Annotated[Path, typer.Option(help="Exported model that `small` learns from")] = MODELS / "large",
    start: Start = None,
    device: Device = "auto",
) -> None:
    """Train `large` on the stored latents, or teach `small` what `large` says with guidance."""
    if name not in SHAPES:
        raise typer.BadParameter(f"name must be one of {sorted(SHAPES)}, not {name!r}")
    plan = DenoiserPlan(
        seconds=seconds,
        seed=seed,
        optimizer=optimizer,
        batch=batch,
        rate=rate,
        other_sizes=other_sizes,
        grid_prompts=tuple(grid_prompts()),
        judged=COUNT,
    )
    train_in_workers(name, plan, work, workers, teacher, start, torch.device(chosen_device(device)))


@app.command()
def export(
    names: Annotated[list[str], typer.Argument(help="Any of clip, judge, large, small")],
    work: Work = WORK,
    models: Models = MODELS,
) -> None:
    """Write trained models in the format they ship in."""
    for name in names:
        if name == "clip":
            export_pair(work, models / name)
        elif name == "judge":
            export_judge(work, models / name)
        elif name in SHAPES:
            export_denoiser(work, name, models / name)
        else:
            raise typer.BadParameter(f"names must be of clip, judge, {', '.join(SHAPES)}, not {name!r}")


@app.command(name="judge-net")
def judge_net(
    work: Work = WORK, seconds: Seconds = 480, seed: Seed = 3, start: Start = None, device: Device = "auto"
) -> None:
    """Train the judge's classifier."""
    plan = JudgePlan(seconds=seconds, seed=seed)
    train_judge_net(plan, trained_autoencoder(work), work / "sprites", work, start, torch.device(chosen_device(device)))


@app.command()
def judge(
    names: Annotated[list[str], typer.Argument(help="Any of real, round-trip, clip, large, small")],
    work: Work = WORK,
    models: Models = MODELS,
    out: Annotated[Path, typer.Option(help="Folder for summary.json and a grid per model")] = Path("out/judge"),
    count: Annotated[int, typer.Option(help="Held-out prompts per model: the same scenes at each size")] = 256,
    steps: int = 50,
    guidance: Annotated[float | None, typer.Option(help="Guidance; default: what each model's card says")] = None,
    threads: int = 2,
) -> None:
    """Judge exported models on held-out prompts, and the judge itself on real renders; adds to `summary.json`."""
    torch.set_num_threads(threads)
    write_judgement(names, work, models, out, count, steps, guidance)


@app.command()
def grid(
    name: Annotated[str, typer.Argument(help="large or small")],
    target: Annotated[Path, typer.Argument(help="The picture to write")],
    models: Models = MODELS,
    count: Annotated[int, typer.Option(help="How many of the 48 fixed prompts")] = 48,
    columns: int = 8,
) -> None:
    """Draw the fixed held-out prompts with an exported model, uncurated, one seed each."""
    torch.set_num_threads(2)
    pictures = prompt_pictures(models / name, grid_prompts()[:count], guidance=SHIPPED[name].default_guidance)
    runs.save_grid(list(pictures), columns, target, scale=2)


def grid_prompts(count: int = 48) -> list[str]:
    """The held-out prompts of the grids drawn while training; fixed before anyone looked."""
    rng = random.Random(2026)
    scenes = [scene for scene in (random_scene(rng, 0.3) for _ in range(count * 30)) if held_out(scene)][:count]
    return [caption(scene, i % WORDINGS) for i, scene in enumerate(scenes)]


def main() -> None:
    """Entry point."""
    app()


if __name__ == "__main__":
    main()
