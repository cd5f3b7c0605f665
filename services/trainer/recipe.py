"""Recipe of the bundled models: every stage in order with the shipped settings; it continues after any kill."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from services.trainer.clip_pair import PairPlan, train_pair
from services.trainer.evaluation.during_training import COUNT
from services.trainer.export import autoencoder_at, export_denoiser, export_judge, export_pair
from services.trainer.judging.classifier_training import JudgePlan, train_judge_net
from services.trainer.judging.scenes import grid_prompts
from services.trainer.rendering.renderer import Renderer
from services.trainer.text_to_image import latents
from services.trainer.text_to_image.autoencoder import AutoencoderPlan, train_autoencoder
from services.trainer.text_to_image.denoiser import TIMESTEP_CENTRE
from services.trainer.text_to_image.denoiser_training import DenoiserPlan
from services.trainer.training import runs
from services.trainer.workers import train_in_workers


@dataclass(frozen=True)
class DenoiserSitting:
    """One phase of a denoiser's training, until `steps` (counted from the first step of all)."""

    steps: int
    other_sizes: float
    timestep_centre: float = TIMESTEP_CENTRE


SITTINGS = {
    "large": (DenoiserSitting(2839, 0.22), DenoiserSitting(8339, 0.5, -0.2)),
    "small": (DenoiserSitting(4150, 0.22), DenoiserSitting(6550, 0.4), DenoiserSitting(9550, 0.4, -0.2)),
}
"""Phases of the shipped denoisers. The last phases use more images of other sizes, less noise, and a high learning rate
again."""
WORKERS = {"large": 2, "small": 1}
"""Number of single-thread processes that trained each denoiser."""


@dataclass(frozen=True)
class Stage:
    """One stage: its name, its minutes on idle cores, a check whether it is done, and its action."""

    name: str
    minutes: float
    finished: Callable[[], bool]
    run: Callable[[], None]


def stages(work: Path, models: Path, device: torch.device, share: float = 1.0) -> list[Stage]:
    """Return the recipe in order; `work` holds checkpoints, `models` the models, `share` scales steps and scenes.

    Minutes are processor time of the run behind the shipped weights, divided by the stage's cores
    (docs/models/training.md).
    """
    sprites = work / "sprites"
    scored, scenes = _scaled(PairPlan.judged, share), _scaled(latents.COUNT, share)

    def trained(name: str, steps: int) -> Callable[[], bool]:
        return lambda: runs.steps_done(work / f"{name}.pt") >= steps

    def encode() -> None:
        torch.set_num_threads(1)
        vae = autoencoder_at(work).to(device, memory_format=torch.channels_last)
        latents.encode_parts(vae, Renderer(sprites), work / "latents", scenes)

    def judge_net(plan: JudgePlan) -> None:
        train_judge_net(plan, autoencoder_at(work), sprites, work, device=device)

    vae = AutoencoderPlan(steps=_scaled(AutoencoderPlan.steps, share))
    pair = PairPlan(steps=_scaled(PairPlan.steps, share), judged=scored)
    eye = JudgePlan(steps=_scaled(JudgePlan.steps, share), judged=_scaled(JudgePlan.judged, share, least=4))
    made = [
        Stage("vae", 12, trained("vae", vae.steps), lambda: train_autoencoder(vae, sprites, work, device=device)),
        Stage("clip", 36, trained("clip", pair.steps), lambda: train_pair(pair, sprites, work, device=device)),
        Stage("latents", 12, lambda: latents.encoded(work / "latents", scenes), encode),
        Stage("judge-net", 6, trained("judge", eye.steps), lambda: judge_net(eye)),
    ]
    for name, minutes in (("large", (45.0, 47.0)), ("small", (59.0, 45.0, 27.0))):
        plans = denoiser_plans(name, share=share)
        for plan, took in zip(plans, minutes, strict=True):
            run = partial(train_in_workers, name, plan, work, WORKERS[name], models / "large", None, device)
            made.append(Stage(f"denoiser {name}", took, trained(name, plan.steps), run))
        made.append(_export(name, work, models, partial(export_denoiser, work, name, models / name)))
    made.append(_export("clip", work, models, partial(export_pair, work, models / "clip")))
    made.append(_export("judge", work, models, partial(export_judge, work, models / "judge")))
    return made


def denoiser_plans(name: str, seed: int = DenoiserPlan.seed, share: float = 1.0) -> list[DenoiserPlan]:
    """Return the phases of the shipped denoiser `name`, one after the other."""
    plans: list[DenoiserPlan] = []
    for sitting in SITTINGS[name]:
        before = plans[-1].steps if plans else 0
        plans.append(
            DenoiserPlan(
                steps=max(before + 1, round(sitting.steps * share)),
                seed=seed,
                other_sizes=sitting.other_sizes,
                timestep_centre=sitting.timestep_centre,
                grid_prompts=tuple(grid_prompts()),
                judged=_scaled(COUNT, share, least=0),
            )
        )
    return plans


def follow(stages: Sequence[Stage]) -> None:
    """Run every stage that is not done yet, and log the progress."""
    for number, stage in enumerate(stages, 1):
        place = f"{number} of {len(stages)}"
        if stage.finished():
            runs.log.info("stage is done", stage=stage.name, place=place)
            continue
        left = sum(later.minutes for later in stages[number - 1 :])
        runs.log.info("stage", stage=stage.name, place=place, expected_minutes=stage.minutes, with_the_rest=left)
        began = time.monotonic()
        stage.run()
        runs.log.info("stage done", stage=stage.name, place=place, minutes=round((time.monotonic() - began) / 60, 1))


def _export(name: str, work: Path, models: Path, run: Callable[[], None]) -> Stage:
    checkpoint, target = work / f"{name}.pt", models / name

    def finished() -> bool:
        return target.exists() and target.stat().st_mtime >= checkpoint.stat().st_mtime

    return Stage(f"export {name}", 0, finished, run)


def _scaled(count: int, share: float, least: int = 1) -> int:
    return max(least, round(count * share))
