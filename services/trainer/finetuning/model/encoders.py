"""Frozen encoders of a checkpoint: the VAE and the text encoders, as its diffusers pipeline calls them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from services.trainer.finetuning.batches import Batch, Row
from services.trainer.finetuning.stepper import Conditions
from shared.domain.errors import ModelError
from shared.domain.types import Size


class CheckpointEncoders:
    """Encodes the images and captions of a batch, without gradients."""

    def __init__(self, pipeline: Any, denoiser: Any) -> None:
        """Read the VAE's scale and shift. Raises ModelError for a VAE with a scale for each channel."""
        self._pipeline = pipeline
        config = pipeline.vae.config
        if getattr(config, "latents_mean", None) or getattr(config, "latents_std", None):
            raise ModelError("vae/config.json: latents_mean and latents_std must be null")
        self._scale = float(config.scaling_factor)
        self._shift = float(getattr(config, "shift_factor", None) or 0.0)
        self.sized = getattr(denoiser.config, "addition_embed_type", None) == "text_time"
        """Whether the denoiser reads sizes and a pooled prompt embedding (SDXL)."""
        self._pooled = "pooled_projection_dim" in denoiser.config

    @torch.no_grad()
    def encode(self, batch: Batch) -> tuple[torch.Tensor, Conditions]:
        """Return scaled latents (B, C, h, w) float32 and conditions; see stepper.Encoders."""
        return self.latents(batch.pixels()), self.conditions(batch.rows, batch.size)

    @torch.no_grad()
    def latents(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the scaled latents of images (B, 3, height, width) in −1…1: the mode of the VAE's distribution."""
        vae = self._pipeline.vae
        found = vae.encode(pixels.to(vae.device, vae.dtype))
        return self.scaled(found.latent_dist.mode() if hasattr(found, "latent_dist") else found.latents)

    def scaled(self, latents: torch.Tensor) -> torch.Tensor:
        """Return the VAE's own latents as the denoiser reads them, float32."""
        return (latents.float() - self._shift) * self._scale

    @torch.no_grad()
    def conditions(self, rows: Sequence[Row], size: Size) -> Conditions:
        """Return the denoiser's other inputs by name, (B, …) each."""
        return self.prompts([row.caption for row in rows]) | self.sizes(rows, size)

    @torch.no_grad()
    def prompts(self, captions: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return prompt embeddings (B, length, width) and, where the model reads them, pooled ones (B, width)."""
        device = self._pipeline.vae.device
        if self.sized:
            hidden, _, pooled, _ = self._pipeline.encode_prompt(
                list(captions), device=device, do_classifier_free_guidance=False
            )
            return {"encoder_hidden_states": hidden, "text_embeds": pooled}
        if self._pooled:
            hidden, _, pooled, _ = self._pipeline.encode_prompt(
                list(captions), None, None, device=device, do_classifier_free_guidance=False
            )
            return {"encoder_hidden_states": hidden, "pooled_projections": pooled}
        hidden, _ = self._pipeline.encode_prompt(list(captions), device, 1, False)
        return {"encoder_hidden_states": hidden}

    def sizes(self, rows: Sequence[Row], size: Size) -> dict[str, torch.Tensor]:
        """Return SDXL's sizes (B, 6): original height and width, crop, target (Podell et al. 2023, §2.2)."""
        if not self.sized:
            return {}
        said = [(row.original.height, row.original.width, *row.crop, size.height, size.width) for row in rows]
        return {"time_ids": torch.tensor(said, dtype=torch.float32, device=self._pipeline.vae.device)}
