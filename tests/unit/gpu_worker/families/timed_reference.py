"""diffusers' own pipelines of the families whose VAE compresses time: what these families must equal."""

from __future__ import annotations

from typing import Any

import diffusers
import numpy as np
from PIL import Image
from torch import Tensor

from services.gpu_worker.engine.rows import Pixels, Task
from tests.unit.gpu_worker.families.clip_reference import said


def pipeline_of(family: Any, kind: str = "", sampler: str = "") -> Any:
    """The family's pipeline, or the pipeline `kind`, on the scheduler whose steps ours are."""
    parts = dict(family.pipeline.components)
    config = parts["scheduler"].config
    if sampler == "dpm++2m":
        parts["scheduler"] = diffusers.DPMSolverMultistepScheduler.from_config(config)
    elif "flow_shift" in config:  # a checkpoint's UniPC: the same flow, Euler's steps
        parts["scheduler"] = diffusers.FlowMatchEulerDiscreteScheduler(shift=config.flow_shift)
    if kind:
        parts.pop("transformer_2", None)
    made = (getattr(diffusers, kind) if kind else type(family.pipeline))(**parts)
    made.set_progress_bar_config(disable=True)
    return made


def timed_clip_of(family: Any, task: Task, output: str = "latent") -> Tensor | np.ndarray:
    """(C, F, h, w) that the pipeline ends with; with `np` (F, height, width, 3) from 0 to 1."""
    asked = {"num_frames": task.frames, "num_inference_steps": task.steps, "output_type": output}
    return pipeline_of(family, sampler=task.sampler)(**said(task), **asked).frames[0]


def latent_from_frames(family: Any, task: Task, clip: Pixels, step: int, kind: str) -> Tensor:
    """(C, F, h, w) that the video-to-video pipeline `kind` ends with, from a clip's frames without `step` steps."""
    strength = (task.steps - step) / task.steps
    asked = said(task) | {"num_inference_steps": task.steps, "strength": strength, "output_type": "latent"}
    if kind == "WanVideoToVideoPipeline":  # its own encode_prompt needs the package ftfy
        words = asked.pop("prompt"), asked.pop("negative_prompt")
        encoded = family.pipeline.encode_prompt(*words, max_sequence_length=512)
        asked |= dict(zip(("prompt_embeds", "negative_prompt_embeds"), encoded, strict=True))
    return pipeline_of(family, kind)(**asked, video=[Image.fromarray(frame) for frame in clip]).frames[0]
