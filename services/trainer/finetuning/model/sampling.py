"""Samples of a run: images that the checkpoint's own diffusers pipeline generates with the averaged weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from services.trainer.finetuning.data.images import Pixels
from services.trainer.finetuning.model.checkpoint import Base
from services.trainer.finetuning.model.denoiser import CheckpointDenoiser
from services.trainer.finetuning.settings import ValidationSettings
from services.trainer.training.runs import save_grid, to_pictures
from shared.domain.types import Size

COLUMNS = 4


@torch.no_grad()
def write_samples(
    base: Base,
    denoiser: CheckpointDenoiser,
    settings: ValidationSettings,
    size: Size,
    seed: int,
    autocast: torch.autocast | None,
    path: Path,
) -> None:
    """Generate one image for each prompt, the same noise every time, and write them to `path` as one sheet."""
    guidance = base.card.default_guidance if settings.guidance < 0 else settings.guidance
    with denoiser.as_served():
        images = [
            _image(base, prompt, size, settings.steps, guidance, seed + place, autocast)
            for place, prompt in enumerate(settings.prompts)
        ]
    save_grid(images, min(COLUMNS, len(images)), path)


def _image(
    base: Base, prompt: str, size: Size, steps: int, guidance: float, seed: int, autocast: torch.autocast | None
) -> Pixels:
    pipeline = base.pipeline
    options = {
        "num_inference_steps": steps,
        "guidance_scale": guidance,
        "width": size.width,
        "height": size.height,
        "generator": torch.Generator().manual_seed(seed),
    }
    if autocast is None:
        latents = pipeline(prompt, output_type="latent", **options).images
    else:
        with autocast:
            latents = pipeline(prompt, output_type="latent", **options).images
    return _decoded(pipeline.vae, latents)


def _decoded(vae: Any, latents: torch.Tensor) -> Pixels:
    """Decode one image outside autocast: SDXL's VAE overflows in half precision."""
    shift = float(getattr(vae.config, "shift_factor", None) or 0.0)
    decoded = vae.decode(latents.to(vae.dtype) / vae.config.scaling_factor + shift, return_dict=False)[0]
    found: Pixels = to_pictures(decoded)[0]
    return found
