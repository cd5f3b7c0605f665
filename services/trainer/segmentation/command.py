"""`python -m services.trainer segmenter`: train the bundled segmenter, judge it on held-out scenes, export it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated

import torch
import typer
from transformers import CLIPSegForImageSegmentation, CLIPTokenizer

from services.trainer.export import shipped_autoencoder
from services.trainer.rendering.renderer import Renderer
from services.trainer.segmentation.export import export_segmenter, trained_segmenter
from services.trainer.segmentation.judging import judge_segmenter
from services.trainer.segmentation.training import SegmenterPlan, train_segmenter
from services.trainer.words import Words

app = typer.Typer(no_args_is_help=True, help="Train the bundled segmenter: train, then judge, then export")

Work = Annotated[Path, typer.Option(help="Folder of sprites, checkpoint and losses")]
Models = Annotated[Path, typer.Option(help="Folder of the bundled models: the CLIP-style pair and the autoencoder")]
WORK = Path("out/train")
MODELS = Path("shared/models/bundled")


@app.command()
def train(
    work: Work = WORK,
    models: Models = MODELS,
    steps: Annotated[int, typer.Option(min=1, help="Training steps over all runs")] = SegmenterPlan.steps,
    seconds: Annotated[
        float, typer.Option(min=1, help="Seconds of wall time over all runs after which training stops")
    ] = math.inf,
    seed: Annotated[int, typer.Option(help="Seed of weights, scenes and noise")] = SegmenterPlan.seed,
    rate: Annotated[float, typer.Option(help="Learning rate after the warm-up")] = SegmenterPlan.rate,
    batch: Annotated[int, typer.Option(min=1, help="Images in a step")] = SegmenterPlan.batch,
) -> None:
    """Train on rendered masks; another run continues where this one stops."""
    torch.set_num_threads(1)
    plan = SegmenterPlan(steps=steps, seconds=seconds, seed=seed, rate=rate, batch=batch)
    train_segmenter(plan, work, models)


@app.command()
def judge(
    model: Annotated[
        Path | None, typer.Argument(help="Exported folder; without it, the averaged weights of the run in --work")
    ] = None,
    work: Work = WORK,
    models: Models = MODELS,
    out: Annotated[Path, typer.Option(help="File of the scores")] = Path("out/judge/segmenter.json"),
    count: Annotated[int, typer.Option(min=4, help="Stills, and frames of moving scenes, each")] = 256,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch")] = 1,
) -> None:
    """Judge masks on held-out scenes against the renderer's."""
    torch.set_num_threads(threads)
    renderer, vae = Renderer(work / "sprites"), shipped_autoencoder(models)
    if model is None:
        net = trained_segmenter(work, models)
    else:
        net = CLIPSegForImageSegmentation.from_pretrained(model, torch_dtype=torch.float32, use_safetensors=True).eval()
    words = Words(CLIPTokenizer.from_pretrained(model or models / "clip"))
    found = judge_segmenter(net, words, renderer, vae, count)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n")
    typer.echo(json.dumps(found, indent=1))


@app.command()
def export(
    target: Annotated[Path, typer.Argument(help="Folder to write: a CLIPSeg with tokenizer and image processor")] = (
        MODELS / "segmenter"
    ),
    work: Work = WORK,
    models: Models = MODELS,
) -> None:
    """Write the averaged weights in fp16; serve them with AFTERIMAGE_SEGMENTER=FOLDER."""
    export_segmenter(work, models, target)
