"""The common base of families that generate clips: latents (C, F, h, w), frames decoded and encoded as images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from services.gpu_worker.engine.rows import Pixels, PromptEncoding
from services.gpu_worker.families.pipeline import PipelineFamily, read_to
from shared.domain.types import Size

CHUNK = 16
"""Frames that the VAE encodes or decodes at once, as in diffusers' AnimateDiffPipeline."""


class ClipFamily(PipelineFamily):
    """A PipelineFamily whose latents have an axis of frames, and whose VAE knows only images.

    A clip of one frame is an image: its pixels and its preview have no axis of frames, its latent keeps the axis.
    """

    def latent_shape(self, size: Size, frames: int = 1) -> tuple[int, ...]:
        channels, *sides = super().latent_shape(size)
        return channels, frames, *sides

    def encode_picture(self, pixels: Pixels) -> Tensor:
        frames = pixels if pixels.ndim == 4 else pixels[None]
        return torch.cat(_by_chunk(self._encode_frames, frames)).transpose(0, 1)

    def decode(self, latent: Tensor) -> Pixels:
        # decode one clip at a time, so that its bits do not depend on clips that finish in the same step
        return _as_image(np.concatenate(_by_chunk(self._paint, latent.transpose(0, 1))))

    def preview(self, clean: Tensor) -> Pixels:
        return _as_image(super().preview(clean))


class UNetClipFamily(ClipFamily):
    """A ClipFamily with a UNet, whose prompts one CLIP text encoder reads."""

    denoiser_name = "unet"

    def _encode_prompt(self, prompt: str, negative: bool) -> PromptEncoding:
        self._residence.bring("text")
        tokenizer = self.pipeline.tokenizer
        warning = read_to(prompt, tokenizer, int(tokenizer.model_max_length), special=2)
        hidden, _ = self.pipeline.encode_prompt(prompt, self.device, 1, False)
        return PromptEncoding(hidden=hidden[0], warning=warning)


def _by_chunk(convert: Callable[[Any], Any], frames: Pixels | Tensor) -> list[Any]:
    return [convert(frames[at : at + CHUNK]) for at in range(0, len(frames), CHUNK)]


def _as_image(clip: Pixels) -> Pixels:
    """Return the only frame of a clip of one frame, else the clip."""
    return clip[0] if len(clip) == 1 else clip
