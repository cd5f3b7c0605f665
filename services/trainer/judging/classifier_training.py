"""Training of the judge's classifier on real renders, some of them blurred, noisy or passed through the autoencoder."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderTiny

from services.trainer.judging.classifier import JudgeNet, judge_weights, reader_of
from services.trainer.judging.confidence import JudgeThresholds
from services.trainer.judging.judge import judge_model, real_pictures
from services.trainer.rendering.clips import FRAMES, render_clip
from services.trainer.rendering.renderer import LAYOUTS, SIZES, Renderer
from services.trainer.training import runs
from services.trainer.training.muon import Muon
from services.trainer.training.sitting import Sitting
from shared.models.scenes import BACKGROUND_MOTIONS, MOTIONS, VALUES, random_scene, with_motion

CHANGED = ("size", "position")
"""Attributes that a motion changes: frames of moving scenes have no labels of them."""
UNKNOWN = -100
"""A label that `cross_entropy` leaves out."""


@dataclass(frozen=True)
class JudgePlan:
    """Training plan of the classifier: `steps`, or `seconds` of wall time over all runs, whichever ends first."""

    steps: int = 1030
    seconds: float = math.inf
    seed: int = 3
    rate: float = 3e-3
    batch: int = 48
    round_trips: float = 0.25
    blurred: float = 0.25
    moving: float = 0.0
    """Share of single frames of moving scenes among the images of 64×64."""
    checkpoint_every: int = 200
    judged: int = 144
    """Number of real renders that score the trained classifier."""


def train_judge_net(
    plan: JudgePlan,
    vae: AutoencoderTiny,
    sprites: Path,
    work: Path,
    start: Path | None = None,
    device: torch.device | None = None,
    name: str = "judge",
) -> None:
    """Train until the plan is used up, and write `work/<name>.pt`.

    Training continues from the last checkpoint if there is one, else from the exported judge in `start`, if given."""
    torch.set_num_threads(1)
    torch.manual_seed(plan.seed)
    renderer, net = Renderer(sprites), JudgeNet()
    net = net.to(device or "cpu", memory_format=torch.channels_last)  # type: ignore[call-overload]  # documented by torch, missing in its stubs
    vae.to(device or "cpu", memory_format=torch.channels_last)
    kernels = [p for p in net.body.parameters() if p.ndim == 4]
    rest = [p for p in net.parameters() if p.ndim != 4]
    optimizers = [
        Muon(kernels, lr=plan.rate, weight_decay=0.01),
        torch.optim.AdamW(rest, lr=plan.rate, betas=(0.9, 0.99), weight_decay=0.01, fused=True),
    ]
    exported = (lambda: judge_weights(start)) if start else None
    sitting = Sitting(
        name, work, {"model": net}, optimizers,
        steps=plan.steps, seconds=plan.seconds, rate=plan.rate, every=100, start=exported,
    )  # fmt: skip
    while (begun := sitting.begin_step(plan.seed)) is not None:
        _, rng = begun
        labels, pictures = _batch(renderer, vae, rng, plan)
        with runs.autocast(pictures.device):
            scores = net(pictures)
        losses = {name: F.cross_entropy(scores[name].float(), of.to(pictures.device)) for name, of in labels.items()}
        sitting.end_step(sum(losses.values(), torch.zeros(())) + 4 * losses["object"], clip=False)
        seen = sitting.step * plan.batch
        sitting.report(seen, **{name: loss.item() for name, loss in losses.items()})
        if sitting.step % plan.checkpoint_every == 0:
            sitting.save()
    sitting.save()
    sitting.plot()
    sitting.average.swap()
    found = judge_model(real_pictures(renderer), renderer, reader_of(net.cpu().eval()), JudgeThresholds(), plan.judged)
    shown = {name: round(value, 3) for name, value in found.items() if isinstance(value, float)}
    runs.log.info("judge done", step=sitting.step, **shown)


def _batch(
    renderer: Renderer, vae: AutoencoderTiny, rng: random.Random, plan: JudgePlan
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    width, height = (64, 64) if rng.random() < 0.6 else SIZES[1 + rng.randrange(3)]
    moving = round(plan.moving * plan.batch) if (width, height) == (64, 64) else 0
    scenes, frames = [random_scene(rng) for _ in range(plan.batch)], []
    for i in range(moving):
        clip = with_motion(scenes[i], rng.choice(MOTIONS), rng.choice(BACKGROUND_MOTIONS))
        scenes[i] = clip.scene
        frames.append(
            render_clip(renderer, clip, layout=rng.randrange(LAYOUTS), only=[rng.randrange(FRAMES)]).pixels[0]
        )
    stills = [renderer.render(one, width, height, rng.randrange(LAYOUTS)).pixels for one in scenes[moving:]]
    labels = {name: torch.tensor([one.labels()[name] for one in scenes]) for name in VALUES}
    for name in CHANGED:
        labels[name][:moving] = UNKNOWN
    pictures = runs.to_tensor(np.stack(frames + stills)).to(vae.device, memory_format=torch.channels_last)
    if rng.random() < plan.round_trips:
        with torch.no_grad(), runs.autocast(vae.device):
            pictures = vae.decode(vae.encode(pictures).latents).sample.float().clamp(-1, 1)
    if rng.random() < plan.blurred:
        pictures = F.avg_pool2d(F.pad(pictures, (1, 1, 1, 1), mode="replicate"), 3, 1)
    if rng.random() < 0.5:
        pictures = pictures + 0.1 * rng.random() * torch.randn_like(pictures)
    return labels, pictures
