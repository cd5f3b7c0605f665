"""diffusers' own clip pipelines on a family's components: what every family of clips must equal."""

from __future__ import annotations

from typing import Any

import diffusers
import numpy as np
import torch
from torch import Tensor

from services.gpu_worker.engine.rows import Task
from tests.unit.gpu_worker.families.reference import pipeline_of


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
    pipeline = pipeline or pipeline_of(family, sampler=task.sampler)
    asked = {"num_frames": task.frames, "num_inference_steps": task.steps, "output_type": output}
    return pipeline(**said(task), **asked).frames[0]


def latent_from_clip(family: Any, task: Task, clean: Tensor, step: int) -> Tensor:
    """(C, F, h, w) that AnimateDiff's video-to-video pipeline ends with, from a clip's latent without `step` steps."""
    parts = family.pipeline.components
    pipeline = diffusers.AnimateDiffVideoToVideoPipeline(**parts)
    pipeline.set_progress_bar_config(disable=True)
    left = task.steps - step
    # the pipeline adds noise to given latents only where the steps that are left are named, not the whole run's
    asked = {"num_inference_steps": left, "strength": left / task.steps, "enforce_inference_steps": True}
    return pipeline(**said(task), **asked, latents=clean[None], output_type="latent").frames[0]
