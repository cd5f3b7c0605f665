"""SANA: linear attention over latents of a 32× autoencoder; Gemma 2 encodes the prompts, with an instruction before
each.

SANA checkpoints name DPM-Solver++ as their scheduler: the sampler `dpm++2m` takes those steps. By default this family
takes Euler steps along the same flow (same flow_shift), like the authors' flow_euler sampler: Euler runs continue from
the latent of step K alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from services.gpu_worker.engine.patches.packed_transformer import PackedTransformer
from services.gpu_worker.engine.rows import PromptEncoding, Row
from services.gpu_worker.families.pipeline import PipelineFamily, load_pipeline, read_to
from shared.models import ModelCard

TOKENS = 300
"""Tokens of a prompt's encoding that SanaPipeline keeps."""


def load(card: ModelCard, **placed: Any) -> SanaFamily:
    """Load a SanaPipeline; `placed`: PipelineFamily's keywords."""
    return SanaFamily(card, load_pipeline(card, "SanaPipeline"), **placed)


class SanaFamily(PipelineFamily):
    """A SanaPipeline's own components in the engine's loop."""

    slots_differ = True  # measured on the CPU: linear attention's odd-sized products differ by 3e-7 between slots

    def _mixing(self, patch_px: int) -> PackedTransformer:
        return PackedTransformer(self.denoiser, int(self.denoiser.config.patch_size))

    @cached_property
    def _instruction(self) -> Any:
        """The instruction that SanaPipeline puts before a prompt by default (SANA §3.1), but not before a negative
        prompt."""
        return inspect.signature(type(self.pipeline).__call__).parameters["complex_human_instruction"].default

    def _encode_prompt(self, prompt: str, negative: bool) -> PromptEncoding:
        self._residence.bring("text")
        hidden, mask, _, _ = self.pipeline.encode_prompt(
            prompt,
            False,
            device=self.device,
            max_sequence_length=TOKENS,
            complex_human_instruction=None if negative else self._instruction,
        )
        # with the instruction, the prompt has one token fewer
        warning = read_to(prompt, self.pipeline.tokenizer, TOKENS if negative else TOKENS - 1, special=1)
        return PromptEncoding(hidden=hidden[0], mask=mask[0], warning=warning)

    def _forward(
        self, latents: Tensor, timesteps: Tensor, encodings: Sequence[PromptEncoding], rows: Sequence[Row]
    ) -> Tensor:
        masks = [encoding.mask for encoding in encodings if encoding.mask is not None]
        output = self.denoiser(
            latents.to(self._dtype),
            encoder_hidden_states=torch.stack([encoding.hidden for encoding in encodings]).to(self._dtype),
            encoder_attention_mask=torch.stack(masks),
            timestep=timesteps * self.denoiser.config.timestep_scale,
            return_dict=False,
        )[0]
        return output[:, : self._channels].float()  # drop a learned sigma, if there is one
