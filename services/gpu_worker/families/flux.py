"""FLUX.1: a transformer on packed 2×2 latents, flow matching; guidance is an input (dev) or absent (schnell)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from services.gpu_worker.engine.patches.packed_transformer import PackedTransformer
from services.gpu_worker.engine.rows import PromptEncoding, Row
from services.gpu_worker.families.pipeline import PipelineFamily, load_pipeline, read_to, stacked
from shared.models import ModelCard

T5_TOKENS = 512
"""Tokens that FluxPipeline lets T5 read."""
TRAINED = 1000
"""Steps in training; the transformer takes timesteps divided by this, in [0, 1]."""


def load(card: ModelCard, **placed: Any) -> FluxFamily:
    """Load a FluxPipeline; `placed`: PipelineFamily's keywords."""
    return FluxFamily(card, load_pipeline(card, "FluxPipeline"), **placed)


class FluxFamily(PipelineFamily):
    """A FluxPipeline's own components in the engine's loop.

    With embedded guidance (dev), a row is one forward pass and its negative prompt is not read, as in FluxPipeline with
    true_cfg_scale = 1. Without it, guidance above 1 is classifier-free (FluxPipeline's true_cfg_scale) and reads the
    negative prompt.
    """

    @property
    def guidance_embedded(self) -> bool:  # type: ignore[override]
        return bool(self.denoiser.config.guidance_embeds)

    @property
    def _channels(self) -> int:
        return int(self.denoiser.config.in_channels) // 4

    def _mixing(self, patch_px: int) -> PackedTransformer:
        return PackedTransformer(self.denoiser, self._patch)

    def _encode_prompt(self, prompt: str, negative: bool) -> PromptEncoding:
        self._residence.bring("text")
        hidden, pooled, _ = self.pipeline.encode_prompt(prompt, prompt, self.device, 1, max_sequence_length=T5_TOKENS)
        warning = read_to(prompt, self.pipeline.tokenizer_2, T5_TOKENS, special=1)
        return PromptEncoding(hidden=hidden[0], pooled=pooled[0], warning=warning)

    def _forward(
        self, latents: Tensor, timesteps: Tensor, encodings: Sequence[PromptEncoding], rows: Sequence[Row]
    ) -> Tensor:
        batch, channels, height, width = latents.shape
        hidden, pooled = stacked(encodings, self._dtype)
        guidance = torch.tensor([row.task.guidance for row in rows], device=self.device)
        packed = self.pipeline._pack_latents(latents.to(self._dtype), batch, channels, height, width)
        places = self.pipeline._prepare_latent_image_ids(batch, height // 2, width // 2, self.device, self._dtype)
        output = self.denoiser(
            hidden_states=packed,
            timestep=timesteps.to(self._dtype) / TRAINED,
            guidance=guidance if self.guidance_embedded else None,
            pooled_projections=pooled,
            encoder_hidden_states=hidden,
            txt_ids=torch.zeros(hidden.shape[1], 3, device=self.device, dtype=self._dtype),
            img_ids=places,
            return_dict=False,
        )[0]
        side = self._cell_px
        return self.pipeline._unpack_latents(output, height * side, width * side, side).float()
