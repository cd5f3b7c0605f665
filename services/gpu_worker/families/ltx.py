"""LTX-Video: a video transformer on flow matching, with T5 as text encoder and a VAE that compresses 8 frames of 32×32
pixels to one latent cell.

The shift of the sigmas grows with the number of tokens, so rows of other sizes and lengths have other schedules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from services.gpu_worker.engine.rows import PromptEncoding, Row, first_noise
from services.gpu_worker.families.clips import TimedVaeFamily
from services.gpu_worker.families.pipeline import load_pipeline, read_to
from shared.domain.errors import ModelError
from shared.models import ModelCard

TOKENS = 128
"""Tokens that LTXPipeline lets T5 read."""
FRAME_RATE = 25
"""Frames per second in the positions of the frames: LTXPipeline's default. The speed of playback changes no frame."""
DECODE_TIMESTEP = 0.05
"""Timestep at which a decoder with timestep conditioning (LTX-Video 0.9.1 and later) makes the last denoising step."""
DECODE_NOISE = 0.025
"""Share of noise that the latent gets before that step; both numbers are diffusers' recommendation."""
DECODE_SEED = 0
"""Seed of that noise, the same for every clip: decoding a latent twice gives equal frames."""


def load(card: ModelCard, **placed: Any) -> LTXFamily:
    """Load an LTXPipeline; `placed`: PipelineFamily's keywords."""
    pipeline = load_pipeline(card, "LTXPipeline")
    if any(pipeline.vae.config.decoder_inject_noise):
        rule = "decoder_inject_noise must be false: a decoder that draws noise decodes no latent twice to equal frames"
        raise ModelError(f"model {card.name!r}: vae/config.json: {rule} (got true)")
    return LTXFamily(card, pipeline, **placed)


class LTXFamily(TimedVaeFamily):
    """An LTXPipeline's own components in the engine's loop."""

    @property
    def _patch(self) -> int:
        return int(self.denoiser.config.patch_size)

    @property
    def _cell_px(self) -> int:
        return int(self.pipeline.vae_spatial_compression_ratio)

    @property
    def _frame_ratio(self) -> int:
        return int(self.pipeline.vae_temporal_compression_ratio)

    def _encode_prompt(self, prompt: str, negative: bool) -> PromptEncoding:
        self._residence.bring("text")
        hidden, mask, _, _ = self.pipeline.encode_prompt(
            prompt, do_classifier_free_guidance=False, max_sequence_length=TOKENS, device=self.device
        )
        warning = read_to(prompt, self.pipeline.tokenizer, TOKENS, special=1)
        return PromptEncoding(hidden=hidden[0], mask=mask[0], warning=warning)

    def _forward(
        self, latents: Tensor, timesteps: Tensor, encodings: Sequence[PromptEncoding], rows: Sequence[Row]
    ) -> Tensor:
        frames, height, width = latents.shape[2:]
        masks = [encoding.mask for encoding in encodings if encoding.mask is not None]
        output = self.denoiser(
            hidden_states=self.pipeline._pack_latents(latents.to(self._dtype)),
            encoder_hidden_states=torch.stack([encoding.hidden for encoding in encodings]).to(self._dtype),
            timestep=timesteps,
            encoder_attention_mask=torch.stack(masks),
            num_frames=frames,
            height=height,
            width=width,
            rope_interpolation_scale=(self._frame_ratio / FRAME_RATE, self._cell_px, self._cell_px),
            return_dict=False,
        )[0]
        return self.pipeline._unpack_latents(output, frames, height, width).float()

    def _decoded(self, latents: Tensor) -> Tensor:
        vae = self.pipeline.vae
        if not vae.config.timestep_conditioning:
            return super()._decoded(latents)
        noise = first_noise(DECODE_SEED, latents.shape).to(latents)
        timesteps = torch.full((len(latents),), DECODE_TIMESTEP).to(latents)
        return vae.decode((1 - DECODE_NOISE) * latents + DECODE_NOISE * noise, timesteps, return_dict=False)[0]
