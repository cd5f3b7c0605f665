"""diffusers' own pipelines on a family's components: what every family must equal."""

from __future__ import annotations

from typing import Any

import diffusers
import torch
from torch import Tensor

from services.gpu_worker.engine.rows import Task


def pipeline_of(family: Any, image_to_image: bool = False, sampler: str = "") -> Any:
    """The family's pipeline, or its image-to-image sister, on the scheduler whose steps ours are."""
    pipeline = family.pipeline
    kind = type(pipeline)
    if image_to_image:
        kind = getattr(diffusers, kind.__name__.replace("Pipeline", "Img2ImgPipeline"))
    parts = dict(pipeline.components)
    if kind.__name__.startswith("StableDiffusionXL"):  # a checkpoint's EulerDiscrete: the same betas, DDIM's steps
        parts["scheduler"] = diffusers.DDIMScheduler.from_config(pipeline.scheduler.config)
        parts["add_watermarker"] = False
    if kind.__name__.startswith("Sana"):
        shift = pipeline.scheduler.config.flow_shift
        parts["scheduler"] = diffusers.FlowMatchEulerDiscreteScheduler(shift=shift)
    if sampler == "dpm++2m":
        parts["scheduler"] = diffusers.DPMSolverMultistepScheduler.from_config(pipeline.scheduler.config)
    made = kind(**parts)
    made.set_progress_bar_config(disable=True)
    return made


def said(family: Any, task: Task) -> dict[str, Any]:
    """The task as the family's pipeline is asked for it."""
    asked: dict[str, Any] = {
        "prompt": task.prompt,
        "num_inference_steps": task.steps,
        "generator": torch.Generator().manual_seed(task.seed),
        "guidance_scale": task.guidance,
    }
    kind = type(family.pipeline).__name__
    if kind == "FluxPipeline":
        if not family.guidance_embedded:
            asked |= {"true_cfg_scale": task.guidance, "negative_prompt": task.negative_prompt}
        return asked
    if kind == "SanaPipeline":
        return asked | {"negative_prompt": task.negative_prompt, "use_resolution_binning": False}
    return asked | {"negative_prompt": task.negative_prompt or None}


def latent_of(family: Any, task: Task) -> Tensor:
    """(C, h, w) that the pipeline ends with."""
    size = {"width": task.size.width, "height": task.size.height}
    latents = pipeline_of(family, sampler=task.sampler)(**said(family, task), **size, output_type="latent").images
    return unpacked(family, task, latents)


def latent_from_picture(family: Any, task: Task, clean: Tensor, step: int) -> Tensor:
    """(C, h, w) that the image-to-image pipeline ends with, from a picture's latent, `step` steps left out."""
    strength = {"image": clean[None], "strength": (task.steps - step) / task.steps}
    size = {} if "XL" in type(family.pipeline).__name__ else {"width": task.size.width, "height": task.size.height}
    latents = pipeline_of(family, True, task.sampler)(
        **said(family, task), **strength, **size, output_type="latent"
    ).images
    return unpacked(family, task, latents)


def unpacked(family: Any, task: Task, latents: Tensor) -> Tensor:
    if type(family.pipeline).__name__ != "FluxPipeline":
        return latents[0]
    pipeline = family.pipeline
    return pipeline._unpack_latents(latents, task.size.height, task.size.width, pipeline.vae_scale_factor)[0]
