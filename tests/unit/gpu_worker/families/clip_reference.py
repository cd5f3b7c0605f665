"""diffusers' own clip pipelines on a family's checkpoint, loaded apart: what every family of clips must equal."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch
from torch import Tensor

from services.gpu_worker.engine.rows import Task


@cache
def loaded(folder: Path) -> Any:
    """The pipeline as diffusers loads it; a family may change its own denoiser (FreeNoise)."""
    pipeline = diffusers.DiffusionPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def parts_of(family: Any, sampler: str = "") -> dict[str, Any]:
    parts = dict(loaded(family.card.folder).components)
    if sampler == "dpm++2m":
        parts["scheduler"] = diffusers.DPMSolverMultistepScheduler.from_config(parts["scheduler"].config)
    return parts


def said(task: Task) -> dict[str, Any]:
    """The task as a pipeline is asked for it."""
    return {
        "prompt": task.prompt,
        "negative_prompt": task.negative_prompt or None,
        "guidance_scale": task.guidance,
        "generator": torch.Generator().manual_seed(task.seed),
        "height": task.size.height,
        "width": task.size.width,
    }


def clip_of(family: Any, task: Task, pipeline: Any = None, output: str = "latent") -> Tensor | np.ndarray:
    """(C, F, h, w) that the pipeline ends with; with `np` (F, height, width, 3) from 0 to 1."""
    pipeline = pipeline or type(family.pipeline)(**parts_of(family, task.sampler))
    pipeline.set_progress_bar_config(disable=True)
    asked = {"num_frames": task.frames, "num_inference_steps": task.steps, "output_type": output}
    return pipeline(**said(task), **asked).frames[0]


def latent_from_clip(family: Any, task: Task, clean: Tensor, step: int) -> Tensor:
    """(C, F, h, w) that AnimateDiff's video-to-video pipeline ends with, from a clip's latent without `step` steps."""
    pipeline = diffusers.AnimateDiffVideoToVideoPipeline(**parts_of(family))
    pipeline.set_progress_bar_config(disable=True)
    left = task.steps - step
    # the pipeline adds noise to given latents only where the steps that are left are named, not the whole run's
    asked = {"num_inference_steps": left, "strength": left / task.steps, "enforce_inference_steps": True}
    return pipeline(**said(task), **asked, latents=clean[None], output_type="latent").frames[0]
