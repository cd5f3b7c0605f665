"""Text-to-video UNets with temporal convolutions and temporal attention (ModelScope's form, diffusers'
UNet3DConditionModel)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from services.gpu_worker.engine.rows import PromptEncoding, Row
from services.gpu_worker.families.clips import UNetClipFamily
from services.gpu_worker.families.pipeline import load_pipeline
from shared.models import ModelCard


def load(card: ModelCard, **placed: Any) -> TextToVideoFamily:
    """Load a TextToVideoSDPipeline; `placed`: PipelineFamily's keywords."""
    return TextToVideoFamily(card, load_pipeline(card, "TextToVideoSDPipeline"), **placed)


class TextToVideoFamily(UNetClipFamily):
    """A TextToVideoSDPipeline's own components in the engine's loop."""

    def _forward(
        self, latents: Tensor, timesteps: Tensor, encodings: Sequence[PromptEncoding], rows: Sequence[Row]
    ) -> Tensor:
        hidden = torch.stack([encoding.hidden for encoding in encodings])
        return self.denoiser(latents.to(self._dtype), timesteps, hidden, return_dict=False)[0].float()
