"""Wan: a video transformer on flow matching, with UMT5 as text encoder and a causal VAE that compresses time.

Wan checkpoints name UniPC as their scheduler, whose steps need the outputs of earlier steps. This family takes Euler
steps along the same flow (same flow_shift): a run then continues from the latent of step K alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from services.gpu_worker.engine.rows import PromptEncoding, Row
from services.gpu_worker.families.clips import TimedVaeFamily
from services.gpu_worker.families.pipeline import load_pipeline, read_to
from shared.domain.errors import ModelError
from shared.models import ModelCard

TOKENS = 512
"""Tokens that WanPipeline lets UMT5 read."""


def load(card: ModelCard, **placed: Any) -> WanFamily:
    """Load a WanPipeline with one transformer; `placed`: PipelineFamily's keywords."""
    pipeline = load_pipeline(card, "WanPipeline", transformer=_transformer, vae=_vae)
    if (ratio := pipeline.config.boundary_ratio) is not None:
        rule = f"boundary_ratio must be null: a second transformer for low noise is not supported (got {ratio})"
        raise ModelError(f"model {card.name!r}: model_index.json: {rule}")
    return WanFamily(card, pipeline, **placed)


class WanFamily(TimedVaeFamily):
    """A WanPipeline's own components in the engine's loop."""

    @property
    def _patch(self) -> int:
        return int(self.denoiser.config.patch_size[1])

    @property
    def _cell_px(self) -> int:
        return int(self.pipeline.vae_scale_factor_spatial)

    @property
    def _frame_ratio(self) -> int:
        return int(self.pipeline.vae_scale_factor_temporal)

    def _encode_prompt(self, prompt: str, negative: bool) -> PromptEncoding:
        self._residence.bring("text")
        hidden, _ = self.pipeline.encode_prompt(
            prompt, do_classifier_free_guidance=False, max_sequence_length=TOKENS, device=self.device
        )
        warning = read_to(prompt, self.pipeline.tokenizer, TOKENS, special=1)
        return PromptEncoding(hidden=hidden[0], warning=warning)

    def _forward(
        self, latents: Tensor, timesteps: Tensor, encodings: Sequence[PromptEncoding], rows: Sequence[Row]
    ) -> Tensor:
        output = self.denoiser(
            hidden_states=latents.to(self._dtype),
            timestep=timesteps,
            encoder_hidden_states=torch.stack([encoding.hidden for encoding in encodings]).to(self._dtype),
            return_dict=False,
        )[0]
        return output.float()


def _transformer(card: ModelCard) -> Any:
    """Load the transformer in the card's dtype, and its norms and time embedding in float32, as diffusers does.

    Diffusers itself loads a model of two dtypes only through the package accelerate, which is not a dependency.
    """
    from diffusers import WanTransformer3DModel

    kept = WanTransformer3DModel._keep_in_fp32_modules

    class OfOneType(WanTransformer3DModel):
        _keep_in_fp32_modules = None

    loaded = OfOneType.from_pretrained(
        card.folder / "transformer", torch_dtype=torch.float32, use_safetensors=True, local_files_only=True
    )
    loaded.__class__ = WanTransformer3DModel
    for name, weight in loaded.named_parameters():
        if not any(part in name for part in kept):
            weight.data = weight.data.to(getattr(torch, card.dtype))
    return loaded


def _vae(card: ModelCard) -> Any:
    """Load the VAE in float32, as its authors run it."""
    from diffusers import AutoencoderKLWan

    return AutoencoderKLWan.from_pretrained(
        card.folder / "vae", torch_dtype=torch.float32, use_safetensors=True, local_files_only=True
    )
