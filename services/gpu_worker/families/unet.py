"""Latent diffusion with a UNet: SD 1.x, SD 2.x and the bundled models, and SDXL with its added conditioning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from services.gpu_worker.engine.patches.layout import patch_side
from services.gpu_worker.engine.patches.patched_unet import PatchedUNet
from services.gpu_worker.engine.rows import PromptEncoding, Row
from services.gpu_worker.families.pipeline import PipelineFamily, load_pipeline, read_to, stacked
from shared.domain.errors import ModelError
from shared.models import ModelCard
from shared.models.card_lookup import check_patch
from shared.runtime.telemetry import log


def load(card: ModelCard, **placed: Any) -> UNetFamily:
    """Load a StableDiffusionPipeline or StableDiffusionXLPipeline; `placed`: PipelineFamily's keywords."""
    pipeline = load_pipeline(card, "StableDiffusionPipeline", "StableDiffusionXLPipeline")
    if getattr(pipeline.unet.config, "time_cond_proj_dim", None):
        rule = "unet/config.json: time_cond_proj_dim must be null (guidance distilled into the timestep)"
        raise ModelError(f"model {card.name!r}: {rule}")
    return UNetFamily(card, pipeline, **placed)


class UNetFamily(PipelineFamily):
    """A UNet pipeline's own components in the engine's loop.

    patch_px: side of a patch in pixels, with the layout `patches`; 0: from the card (patch_side).
    """

    denoiser_name = "unet"

    def _mixing(self, patch_px: int) -> PatchedUNet:
        """Replace the UNet's operators, and log the side of the patches.

        Raises ModelError for a patch that the UNet's levels cannot halve.
        """
        cell_px, multiple = self._cell_px, 2**self.denoiser.num_upsamplers
        check_patch(self.card.name, patch_px, multiple * cell_px)
        side = patch_px // cell_px or patch_side(self.card.sizes, self.card.default_size, cell_px, multiple)
        patched = PatchedUNet(self.denoiser, side)
        log("gpu_worker").info("sizes share a batch", model=self.card.name, patch_px=side * cell_px)
        return patched

    @property
    def _xl(self) -> bool:
        return getattr(self.pipeline, "text_encoder_2", None) is not None

    def _encode_prompt(self, prompt: str, negative: bool) -> PromptEncoding:
        self._residence.bring("text")
        tokenizer = self.pipeline.tokenizer or self.pipeline.tokenizer_2
        warning = read_to(prompt, tokenizer, int(tokenizer.model_max_length), special=2)
        if not self._xl:
            hidden, _ = self.pipeline.encode_prompt(prompt, self.device, 1, False)
            return PromptEncoding(hidden=hidden[0], warning=warning)
        hidden, _, pooled, _ = self.pipeline.encode_prompt(prompt, None, self.device, 1, False)
        if negative and not prompt and self.pipeline.config.force_zeros_for_empty_prompt:
            hidden, pooled = torch.zeros_like(hidden), torch.zeros_like(pooled)
        return PromptEncoding(hidden=hidden[0], pooled=pooled[0], warning=warning)

    def _forward(
        self, latents: Tensor, timesteps: Tensor, encodings: Sequence[PromptEncoding], rows: Sequence[Row]
    ) -> Tensor:
        added = None
        if self._xl:
            hidden, pooled = stacked(encodings, self._dtype)
            added = {"text_embeds": pooled, "time_ids": self._time_ids(rows)}
        else:
            hidden = torch.stack([encoding.hidden for encoding in encodings])
        output = self.denoiser(
            latents.to(self._dtype),
            timesteps,
            encoder_hidden_states=hidden,
            added_cond_kwargs=added,
            return_dict=False,
        )[0]
        return output.float()

    def _time_ids(self, rows: Sequence[Row]) -> Tensor:
        """Return (B, 6), SDXL's micro-conditioning: original size, crop at (0, 0), target size, each height before
        width."""
        sizes = [(row.task.size.height, row.task.size.width) for row in rows]
        return torch.tensor([(h, w, 0, 0, h, w) for h, w in sizes], dtype=self._dtype, device=self.device)
