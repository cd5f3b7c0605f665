"""AnimateDiff: the UNet of an SD 1.5 checkpoint with the temporal attention of a motion adapter; FreeNoise for long
clips."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from services.gpu_worker.engine.rows import PromptEncoding, Row
from services.gpu_worker.families.clips import UNetClipFamily
from services.gpu_worker.families.pipeline import load_pipeline
from shared.domain.errors import ModelError
from shared.models import ModelCard


def load(card: ModelCard, **placed: Any) -> AnimateDiffFamily:
    """Load an AnimateDiffPipeline, with its UNet as UNetMotionModel or as UNet2DConditionModel beside a motion adapter;
    `placed`: PipelineFamily's keywords."""
    import shared.models.motion_unet  # noqa: F401 - diffusers loads classes of imported modules only

    pipeline = load_pipeline(card, "AnimateDiffPipeline")
    rule, positions = card.frames, int(pipeline.unet.config.motion_max_seq_length)
    if (rule.window or rule.most) > positions:
        least = f"frames.window must be from 1 to {positions}, the positions of temporal attention"
        raise ModelError(f"model {card.name!r}: {least} (got {rule.window}, for clips of up to {rule.most} frames)")
    if rule.window:
        pipeline.motion_adapter = (
            pipeline.unet
        )  # enable_free_noise reads the number of positions from its configuration
        pipeline.enable_free_noise(rule.window, rule.stride)
        pipeline.unet.eval()
    pipeline.register_modules(motion_adapter=None)  # the UNet has copies of the adapter's weights
    return AnimateDiffFamily(card, pipeline, **placed)


class AnimateDiffFamily(UNetClipFamily):
    """An AnimateDiffPipeline's own components in the engine's loop.

    Where the card names a window, clips longer than the window run with FreeNoise. A shorter clip is one window of its
    own length.
    """

    @cached_property
    def _windowed(self) -> list[Any]:
        """The blocks of temporal attention that run by windows."""
        return [block for block in self.denoiser.modules() if hasattr(block, "set_free_noise_properties")]

    def _forward(
        self, latents: Tensor, timesteps: Tensor, encodings: Sequence[PromptEncoding], rows: Sequence[Row]
    ) -> Tensor:
        frames, rule = latents.shape[2], self.card.frames
        for block in self._windowed:
            block.set_free_noise_properties(min(rule.window, frames), rule.stride)
        hidden = torch.stack([encoding.hidden for encoding in encodings])
        output = self.denoiser(
            latents.to(self._dtype),
            timesteps,
            encoder_hidden_states=hidden.repeat_interleave(frames, dim=0),  # (B · F, tokens, width)
            return_dict=False,
        )[0]
        return output.float()
