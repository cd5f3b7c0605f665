"""Training of the bundled segmenter on rendered masks, in one process that continues from its last checkpoint."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import CLIPSegForImageSegmentation, CLIPTokenizer

from services.trainer.export import shipped_autoencoder, through
from services.trainer.rendering.renderer import Renderer
from services.trainer.segmentation.architecture import logits_of, new_segmenter
from services.trainer.segmentation.examples import PHRASES, batch
from services.trainer.training.sitting import Sitting
from services.trainer.words import Words

NAME = "segmenter"


@dataclass(frozen=True)
class SegmenterPlan:
    """Training plan of the segmenter: `steps`, or `seconds` of wall time over all runs, whichever ends first."""

    steps: int = 3000
    seconds: float = math.inf
    seed: int = 6
    rate: float = 2e-3
    towers: float = 0.15
    """Share of the rate at which the towers learn; they come trained."""
    batch: int = 24
    checkpoint_s: float = 60.0


def train_segmenter(plan: SegmenterPlan, work: Path, models: Path) -> None:
    """Train until the plan is used up, and write `work/segmenter.pt`; begin with the pair in `models/clip`."""
    torch.manual_seed(plan.seed)
    renderer, passed = Renderer(work / "sprites"), through(shipped_autoencoder(models))
    words = Words(CLIPTokenizer.from_pretrained(models / "clip"))
    model = new_segmenter(models / "clip").train()
    sitting = Sitting(
        NAME, work, {"model": model}, _optimizers(model, plan),
        steps=plan.steps, seconds=plan.seconds, rate=plan.rate, decay=0.998,
    )  # fmt: skip
    saved = time.monotonic()
    while (begun := sitting.begin_step(plan.seed)) is not None:
        _, rng = begun
        inputs, phrases, masks = batch(renderer, rng, plan.batch, passed)
        ids = words.batch(phrases)
        edges, overlap = mask_losses(logits_of(model, inputs, ids, PHRASES), masks)
        sitting.end_step(edges + overlap)
        sitting.report(sitting.step * plan.batch, edges=edges.item(), overlap=overlap.item())
        if time.monotonic() - saved >= plan.checkpoint_s:
            sitting.save()
            saved = time.monotonic()
    sitting.save()
    sitting.plot()


def mask_losses(logits: torch.Tensor, masks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cross-entropy per pixel, and 1 − the soft Dice score of the masks that are not empty."""
    edges = F.binary_cross_entropy_with_logits(logits, masks)
    shares, there = logits.sigmoid(), masks.sum((-1, -2)) > 0
    dice = 2 * (shares * masks).sum((-1, -2)) / (shares.sum((-1, -2)) + masks.sum((-1, -2)) + 1e-6)
    return edges, (1 - dice)[there].mean()


def _optimizers(model: CLIPSegForImageSegmentation, plan: SegmenterPlan) -> list[torch.optim.Optimizer]:
    """Return Muon for the layers' matrices and AdamW for all else; the towers learn at a lower rate.

    The parts of the towers that the decoder does not read rest."""
    groups: dict[tuple[bool, bool], list[torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if name.startswith(("decoder.", "clip.vision_model.", "clip.text_model.", "clip.text_projection.")):
            matrix = parameter.ndim == 2 and (".layers." in name or ".reduces." in name)
            groups.setdefault((matrix, name.startswith("decoder.")), []).append(parameter)
    scaled: list[list[dict[str, Any]]] = [
        [{"params": groups[matrix, new], "scale": 1.0 if new else plan.towers} for new in (True, False)]
        for matrix in (True, False)
    ]
    return [
        torch.optim.Muon(scaled[0], lr=plan.rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(scaled[1], lr=plan.rate, betas=(0.9, 0.99), weight_decay=0.01),
    ]
