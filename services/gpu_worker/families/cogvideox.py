"""CogVideoX: a transformer over the tokens of text and video together, with T5 as text encoder and a causal VAE that
compresses time.

Runs take DDIM steps over the checkpoint's noise levels. CogVideoXDPMScheduler, which some users choose, needs the
outputs of earlier steps and draws noise in every step.

Latents are (C, F, h, w) as in every family of clips, so a seed's noise differs from CogVideoXPipeline's, which draws
(F, C, h, w).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from services.gpu_worker.engine.rows import Pixels, PromptEncoding, Row
from services.gpu_worker.families.clips import TimedVaeFamily
from services.gpu_worker.families.pipeline import load_pipeline, read_to
from shared.domain.errors import ModelError
from shared.domain.types import Size
from shared.models import ModelCard


def load(card: ModelCard, **placed: Any) -> CogVideoXFamily:
    """Load a CogVideoXPipeline; `placed`: PipelineFamily's keywords."""
    pipeline = load_pipeline(card, "CogVideoXPipeline")
    if pipeline.transformer.config.use_learned_positional_embeddings:
        rule = "use_learned_positional_embeddings must be false: learned positions fit one size (got true)"
        raise ModelError(f"model {card.name!r}: transformer/config.json: {rule}")
    return CogVideoXFamily(card, pipeline, **placed)


class CogVideoXFamily(TimedVaeFamily):
    """A CogVideoXPipeline's own components in the engine's loop."""

    @property
    def _cell_px(self) -> int:
        return int(self.pipeline.vae_scale_factor_spatial)

    @property
    def _frame_ratio(self) -> int:
        return int(self.pipeline.vae_scale_factor_temporal)

    @property
    def _frames_apart(self) -> int:
        return 2 * self._frame_ratio  # after the first latent frame, the VAE decodes pairs

    @property
    def _padding(self) -> int:
        """Latent frames before the clip's, which fill up a token that covers several frames (CogVideoX 1.5)."""
        return int(self.denoiser.config.patch_size_t or 1) - 1

    def latent_shape(self, size: Size, frames: int = 1) -> tuple[int, ...]:
        channels, length, height, width = super().latent_shape(size, frames)
        config = self.denoiser.config
        if self._padding and (height > config.sample_height or width > config.sample_width):
            largest = Size(config.sample_width * self._cell_px, config.sample_height * self._cell_px)
            rule = f"size must be at most {largest}: the transformer has no positions beyond it (got {size})"
            raise ModelError(f"model {self.card.name!r}: {rule}")
        return channels, length + self._padding, height, width

    def encode_picture(self, pixels: Pixels, frames: int = 1) -> Tensor:
        clean = super().encode_picture(pixels, frames)
        return torch.cat([clean[:, : self._padding], clean], dim=1)

    def decode(self, latent: Tensor) -> Pixels:
        return super().decode(latent[:, self._padding :])

    def preview(self, clean: Tensor) -> Pixels:
        return super().preview(clean[:, self._padding :])

    def _encode_prompt(self, prompt: str, negative: bool) -> PromptEncoding:
        self._residence.bring("text")
        tokens = int(self.denoiser.config.max_text_seq_length)
        hidden, _ = self.pipeline.encode_prompt(
            prompt, do_classifier_free_guidance=False, max_sequence_length=tokens, device=self.device
        )
        return PromptEncoding(hidden=hidden[0], warning=read_to(prompt, self.pipeline.tokenizer, tokens, special=1))

    def _forward(
        self, latents: Tensor, timesteps: Tensor, encodings: Sequence[PromptEncoding], rows: Sequence[Row]
    ) -> Tensor:
        frames, height, width = latents.shape[2:]
        positions = None
        if self.denoiser.config.use_rotary_positional_embeddings:
            positions = self.pipeline._prepare_rotary_positional_embeddings(
                height * self._cell_px, width * self._cell_px, frames, self.device
            )
        output = self.denoiser(
            hidden_states=latents.transpose(1, 2).to(self._dtype),
            encoder_hidden_states=torch.stack([encoding.hidden for encoding in encodings]).to(self._dtype),
            timestep=timesteps,
            image_rotary_emb=positions,
            return_dict=False,
        )[0]
        return output.transpose(1, 2).float()
