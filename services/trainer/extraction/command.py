"""`python -m services.trainer extractor`: train and export the small text extractor."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import torch
import typer

from services.trainer.extraction.training import ExtractorPlan, export_extractor, judge_extractor, train_extractor
from services.trainer.extraction.wordnet import FOLDER

app = typer.Typer(no_args_is_help=True, help="Train the text extractor on wordings from word lists, then export it")

WordNet = Annotated[Path, typer.Option(help="Folder of WordNet's files: the Debian package wordnet-base")]
Work = Annotated[Path, typer.Option(help="Folder of tokenizer, checkpoint and losses")]
WORK = Path("out/train")


@app.command()
def train(
    wordnet: WordNet = FOLDER,
    work: Work = WORK,
    steps: Annotated[int, typer.Option(min=1, help="Training steps over all runs")] = ExtractorPlan.steps,
    seconds: Annotated[
        float, typer.Option(min=1, help="Seconds of wall time over all runs after which training stops")
    ] = math.inf,
    seed: Annotated[int, typer.Option(help="Seed of weights and wordings")] = ExtractorPlan.seed,
    rate: Annotated[float, typer.Option(help="Learning rate after the warm-up")] = ExtractorPlan.rate,
    batch: Annotated[int, typer.Option(min=1, help="Prompts in a step")] = ExtractorPlan.batch,
) -> None:
    """Train the extractor on one core; another run continues where this one stops."""
    torch.set_num_threads(1)
    train_extractor(ExtractorPlan(steps=steps, seconds=seconds, seed=seed, rate=rate, batch=batch), wordnet, work)


@app.command()
def export(
    target: Annotated[Path, typer.Argument(help="Folder to write the model to")],
    wordnet: WordNet = FOLDER,
    work: Work = WORK,
) -> None:
    """Write the trained extractor in the format of the shipped one, and judge it on wordings of another seed."""
    export_extractor(work, target)
    typer.echo(judge_extractor(target, wordnet))
