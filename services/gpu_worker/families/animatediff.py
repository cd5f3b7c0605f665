"""AnimateDiff: the UNet of an SD 1.5 checkpoint with the temporal attention of a motion adapter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from services.gpu_worker.engine.rows import PromptEncoding, Row
from services.gpu_worker.families.clips import UNetClipFamily
from services.gpu_worker.families.pipeline import load_pipeline
from shared.models import ModelCard


def load(card: ModelCard, **placed: Any) -> AnimateDiffFamily:
    """Load an AnimateDiffPipeline, with its UNet as UNetMotionModel or as UNet2DConditionModel beside a motion adapter;
    `placed`: PipelineFamily's keywords."""
    pipeline = load_pipeline(card, "AnimateDiffPipeline")
    pipeline.register_modules(motion_adapter=None)  # the UNet has copies of the adapter's weights
    return AnimateDiffFamily(card, pipeline, **placed)


class AnimateDiffFamily(UNetClipFamily):
    """An AnimateDiffPipeline's own components in the engine's loop."""

    def _forward(
        self, latents: Tensor, timesteps: Tensor, encodings: Sequence[PromptEncoding], rows: Sequence[Row]
    ) -> Tensor:
        hidden = torch.stack([encoding.hidden for encoding in encodings])
        output = self.denoiser(
            latents.to(self._dtype),
            timesteps,
            encoder_hidden_states=hidden.repeat_interleave(latents.shape[2], dim=0),  # (B · F, tokens, width)
            return_dict=False,
        )[0]
        return output.float()
