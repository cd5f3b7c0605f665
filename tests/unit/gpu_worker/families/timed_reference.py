"""diffusers' own pipelines of the families whose VAE compresses time: what these families must equal."""

from __future__ import annotations

from typing import Any

import diffusers
import torch
from PIL import Image
from torch import Tensor

from services.gpu_worker.engine.rows import Pixels, Task, first_noise
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


def timed_clip_of(family: Any, task: Task, output: str = "latent", **more: Any) -> Any:
    """(C, F, h, w) that the pipeline ends with; with `np` (F, height, width, 3) from 0 to 1."""
    asked = {"num_frames": task.frames, "num_inference_steps": task.steps, "output_type": output, **more}
    noise = first_noise(task.seed, family.latent_shape(task.size, task.frames))[None]
    if _frames_first(family):  # the pipeline would draw its noise with frames before channels
        tokens = family.denoiser.config.max_text_seq_length
        asked |= {"latents": _as_theirs(family, noise), "max_sequence_length": tokens}
    frames = pipeline_of(family, sampler=task.sampler)(**said(task), **asked).frames
    return (_as_ours(family, frames, noise) if output == "latent" else frames)[0]


def latent_from_frames(family: Any, task: Task, clip: Pixels, step: int, kind: str) -> Tensor:
    """(C, F, h, w) that the video-to-video pipeline `kind` ends with, from a clip's frames without `step` steps.

    Without `kind`: that the family's own pipeline ends with, where the frames replace its latent after `step` steps.
    """
    frames = [Image.fromarray(frame) for frame in clip]
    if not kind:
        return timed_clip_of(family, task, callback_on_step_end=_replaced(family, task, frames, step))
    strength = (task.steps - step) / task.steps
    asked = said(task) | {"num_inference_steps": task.steps, "strength": strength, "output_type": "latent"}
    words = asked.pop("prompt"), asked.pop("negative_prompt")  # the pipeline's own encode_prompt needs ftfy
    encoded = family.pipeline.encode_prompt(*words, max_sequence_length=512)
    asked |= dict(zip(("prompt_embeds", "negative_prompt_embeds"), encoded, strict=True))
    return pipeline_of(family, kind)(**asked, video=frames).frames[0]


def _replaced(family: Any, task: Task, frames: list[Image.Image], step: int) -> Any:
    """A pipeline's callback that puts the noised frames in place of its latent after `step` steps."""
    noise = first_noise(task.seed, family.latent_shape(task.size, task.frames))[None]

    def callback(pipeline: Any, done: int, _: Any, __: Any) -> dict[str, Tensor]:
        if done + 1 != step:
            return {}
        clean = pipeline.vae.encode(pipeline.video_processor.preprocess_video(frames)).latent_dist.mode()
        scheduler = pipeline.scheduler
        if hasattr(pipeline, "_normalize_latents"):
            clean = pipeline._normalize_latents(clean, pipeline.vae.latents_mean, pipeline.vae.latents_std)
            noised = scheduler.sigmas[step] * noise + (1 - scheduler.sigmas[step]) * clean
        else:
            clean = clean * pipeline.vae.config.scaling_factor
            filled = torch.cat([clean[:, :, :1], clean], dim=2)[:, :, -noise.shape[2] :]
            noised = scheduler.add_noise(filled, noise, scheduler.timesteps[step])
        return {"latents": _as_theirs(family, noised)}

    return callback


def _as_theirs(family: Any, latents: Tensor) -> Tensor:
    """A pipeline's own layout of latents (B, C, F, h, w): tokens, or frames before channels."""
    if hasattr(family.pipeline, "_pack_latents"):
        return family.pipeline._pack_latents(latents)
    return latents.transpose(1, 2) if _frames_first(family) else latents


def _as_ours(family: Any, latents: Tensor, like: Tensor) -> Tensor:
    """(B, C, F, h, w) of a pipeline's latents."""
    if hasattr(family.pipeline, "_unpack_latents"):
        return family.pipeline._unpack_latents(latents, *like.shape[2:])
    return latents.transpose(1, 2) if _frames_first(family) else latents


def _frames_first(family: Any) -> bool:
    """Return whether the pipeline's latents are (B, F, C, h, w)."""
    return isinstance(family.pipeline, diffusers.CogVideoXPipeline)
