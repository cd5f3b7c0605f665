"""Evaluation of a training run: held-out scenes generated with its averaged weights, and judged."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from diffusers import AutoencoderTiny

from services.trainer.evaluation.drawing import seeds_and_words
from services.trainer.export import through
from services.trainer.judging.classifier import Reader, load_reader
from services.trainer.judging.confidence import calibrated
from services.trainer.judging.judge import judge_model
from services.trainer.rendering.renderer import Renderer
from services.trainer.text_to_image.architecture import SHAPES
from services.trainer.text_to_image.denoiser import sample
from services.trainer.text_to_image.denoiser_training import Run
from services.trainer.text_to_image.distillation import GUIDANCE
from services.trainer.training import runs
from shared.domain.errors import UnavailableError
from shared.models.scenes import VALUES, Scene
from shared.runtime.progress import Remaining

COUNT = len(VALUES["object"])
"""Number of scenes: about one of every object."""
CALIBRATED = 64
"""Number of real renders that calibrate the judges' thresholds here."""


def evaluate(
    run: Run, vae: AutoencoderTiny, renderer: Renderer, reader: Reader, count: int, steps: int = 50
) -> dict[str, Any]:
    """Return the share of `count` images of 64×64 with each attribute right
    (`services.trainer.judging.judge.summary`)."""
    words = run.data.words
    empty = torch.tensor([words.ids("")])
    guidance = 1.0 if SHAPES[run.name].guided else GUIDANCE

    @torch.no_grad()
    def draw(scenes: Sequence[Scene], size: tuple[int, int]) -> tuple[npt.NDArray[np.uint8], float]:
        began = time.monotonic()
        seeds, said = seeds_and_words(scenes, size)
        tokens = torch.tensor([words.ids(text) for text in said])
        latents = sample(run.model, tokens, empty, size, seeds, steps, guidance)
        return runs.to_pictures(vae.decode(latents.cpu()).sample), time.monotonic() - began

    bar = calibrated(renderer, reader, through(vae), CALIBRATED)
    run.average.swap()
    try:
        found = judge_model(
            draw, renderer, reader, bar, count, sizes=[(64, 64)],
            begin=lambda total: Remaining(f"judging {run.name}, pictures", total, say=runs.log.info).advance,
        )  # fmt: skip
    finally:
        run.average.swap()
    return {name: value for name, value in found.items() if isinstance(value, float | int)}


def report(run: Run, vae: AutoencoderTiny, sprites: Path, judge: Path) -> None:
    """Log the result of `evaluate` for the plan's number of images as `<name> done`.

    Without the sprites, or without a judge of the current grammar in the folder `judge`, log that nothing was
    judged."""
    try:
        renderer, eye = Renderer(sprites), load_reader(judge)
    except (UnavailableError, ValueError, OSError) as error:
        runs.log.warning(f"{run.name} done, not judged", step=run.step, samples=run.samples, error=str(error))
        return
    found = evaluate(run, vae, renderer, eye, run.plan.judged)
    shown = {name: round(value, 3) for name, value in found.items()}
    runs.log.info(f"{run.name} done", step=run.step, samples=run.samples, **shown)
