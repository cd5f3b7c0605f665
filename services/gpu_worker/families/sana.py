"""SANA: linear attention over latents of a 32× autoencoder, prompts read by Gemma 2 under a standing instruction.

Its checkpoints name DPM-Solver++ as their scheduler. A multistep solver carries outputs of earlier steps: a latent of
step K alone cannot go on as it would have, and rows at different steps cannot share an update. SANA is a flow-matching
model, so its own sigmas (the same flow_shift) are walked with Euler steps, as its authors' flow_euler sampler does.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from services.gpu_worker.engine.rows import PromptEncoding, Row
from services.gpu_worker.families.pipeline import PipelineFamily, load_pipeline, read_to
from shared.models import ModelCard

TOKENS = 300
"""What SanaPipeline keeps of a prompt's encoding."""


def load(card: ModelCard, **placed: Any) -> SanaFamily:
    """A SanaPipeline; `placed`: PipelineFamily's keywords."""
    return SanaFamily(card, load_pipeline(card, "SanaPipeline"), **placed)


class SanaFamily(PipelineFamily):
    """Six functions over a SanaPipeline's own components."""

    slots_differ = True  # measured on the CPU: linear attention's odd-sized products, 3e-7 apart between slots

    @cached_property
    def _instruction(self) -> Any:
        """The lines that SanaPipeline puts before a prompt (SANA §3.1), its own default; not before a negative one."""
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
        # behind the instruction one token fewer is the prompt's
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
        return output[:, : self._channels].float()  # a learned sigma, where there is one, is not used
