"""Stable Diffusion 3 and 3.5: a multimodal transformer on flow matching, three text encoders (the third optional)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from services.gpu_worker.engine.patches.packed_transformer import PackedTransformer
from services.gpu_worker.engine.rows import PromptEncoding, Row
from services.gpu_worker.families.pipeline import PipelineFamily, load_pipeline, read_to, stacked
from shared.models import ModelCard

T5_TOKENS = 256
"""Tokens that StableDiffusion3Pipeline lets T5 read."""


def load(card: ModelCard, **placed: Any) -> SD3Family:
    """Load a StableDiffusion3Pipeline; `placed`: PipelineFamily's keywords."""
    return SD3Family(card, load_pipeline(card, "StableDiffusion3Pipeline"), **placed)


class SD3Family(PipelineFamily):
    """A StableDiffusion3Pipeline's own components in the engine's loop."""

    @property
    def _patch(self) -> int:
        return int(self.denoiser.config.patch_size)

    def _mixing(self, patch_px: int) -> PackedTransformer:
        return PackedTransformer(self.denoiser, self._patch)

    def _encode_prompt(self, prompt: str, negative: bool) -> PromptEncoding:
        self._residence.bring("text")
        pipeline = self.pipeline
        hidden, _, pooled, _ = pipeline.encode_prompt(
            prompt, prompt, prompt, self.device, 1, False, max_sequence_length=T5_TOKENS
        )
        # the encoder that reads the most tokens decides the warning
        if pipeline.text_encoder_3 is not None:
            warning = read_to(prompt, pipeline.tokenizer_3, T5_TOKENS, special=1)
        else:
            warning = read_to(prompt, pipeline.tokenizer, int(pipeline.tokenizer_max_length), special=2)
        return PromptEncoding(hidden=hidden[0], pooled=pooled[0], warning=warning)

    def _forward(
        self, latents: Tensor, timesteps: Tensor, encodings: Sequence[PromptEncoding], rows: Sequence[Row]
    ) -> Tensor:
        hidden, pooled = stacked(encodings, self._dtype)
        output = self.denoiser(
            hidden_states=latents.to(self._dtype),
            timestep=timesteps,
            encoder_hidden_states=hidden,
            pooled_projections=pooled,
            return_dict=False,
        )[0]
        return output.float()
