"""Training of the motion model on stored clips, in one process that continues from its last checkpoint."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from services.trainer.rendering.clips import FRAMES
from services.trainer.text_to_image.autoencoder import STRIDE
from services.trainer.text_to_video.denoiser import ClipDenoiser, begin_with, clip_words, sample_clips
from services.trainer.text_to_video.latents import SIDE, ClipLatents
from services.trainer.training import runs
from services.trainer.training.muon import Muon
from services.trainer.training.sitting import Sitting
from services.trainer.words import Words

NAME = "motion"


@dataclass(frozen=True)
class MotionPlan:
    """Training plan of the motion model: `steps`, or `seconds` of wall time over all runs, whichever ends first."""

    steps: int = 9000
    seconds: float = math.inf
    seed: int = 4
    rate: float = 1e-3
    batch: int = 4
    dropout: float = 0.12
    timestep_centre: float = 2.0
    """Above that of images: sixteen frames show the motion through more noise than one."""
    checkpoint_s: float = 120.0
    grid_s: float = 900.0
    grid_prompts: Sequence[str] = ()
    device: str = "cpu"


def train_motion(plan: MotionPlan, image_model: Path, work: Path, vae: Any = None) -> None:
    """Train around the exported image model in `image_model` until the plan is used up; generate the plan's prompts
    now and then if `vae` is given. Raise NotFoundError if there are no clips to train on."""
    tokenizer = clip_words(image_model)
    words = Words(tokenizer)
    data = ClipLatents(work / "clips", words)
    torch.manual_seed(plan.seed)
    model = begin_with(image_model, tokenizer).to(plan.device).train()
    sitting = Sitting(
        NAME, work, {"model": model}, _optimizers(model, plan), steps=plan.steps, seconds=plan.seconds,
        rate=plan.rate, decay=0.999,
    )  # fmt: skip
    saved = shown = time.monotonic()
    while (step := sitting.begin_step(plan.seed)) is not None:
        _, rng = step
        batch = data.batch(plan.batch, rng, plan.dropout).to(torch.device(plan.device))
        loss, plain = model.loss(batch, torch.Generator().manual_seed(rng.getrandbits(40)), plan.timestep_centre)
        sitting.end_step(loss)
        sitting.report(sitting.step * plan.batch, loss=loss.item(), plain=plain.item())
        now = time.monotonic()
        if now - saved >= plan.checkpoint_s:
            sitting.save()
            saved = time.monotonic()
        if vae is not None and plan.grid_prompts and now - shown >= plan.grid_s:
            _grid(model, sitting, words, plan, vae, work)
            shown = time.monotonic()
    sitting.save()
    sitting.plot()


def _grid(model: ClipDenoiser, sitting: Sitting, words: Words, plan: MotionPlan, vae: Any, work: Path) -> None:
    """Save every second frame of the plan's prompts, a row per clip, generated with the averaged weights."""
    sitting.average.swap()
    with runs.autocast(torch.device(plan.device)):
        prompts = plan.grid_prompts
        latents = sample_clips(model, words, prompts, range(len(prompts)), steps=16, side=SIDE // STRIDE)
    sitting.average.swap()
    shown = latents.cpu().float().transpose(1, 2)[:, ::2].flatten(0, 1)
    with torch.no_grad():
        pictures = runs.to_pictures(vae.decode(shown).sample)
    path = work / f"{NAME}-grids" / f"{sitting.step:06d}.png"
    runs.save_grid(list(pictures), FRAMES // 2, path, scale=2)


def _optimizers(model: ClipDenoiser, plan: MotionPlan) -> list[torch.optim.Optimizer]:
    """Return Muon for the inner matrices and kernels, AdamW for all else, as for the image models."""
    inner: list[torch.nn.Parameter] = []
    rest = list(model.text.parameters())
    for name, parameter in model.unet.named_parameters():
        matrix = parameter.ndim >= 2 and "conv_in" not in name and "conv_out" not in name
        (inner if matrix else rest).append(parameter)
    return [
        torch.optim.AdamW(rest, lr=plan.rate, betas=(0.9, 0.99), weight_decay=0.01),
        Muon(inner, lr=plan.rate, weight_decay=0.01),
    ]
