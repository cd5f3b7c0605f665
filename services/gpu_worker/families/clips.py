"""The common bases of families that generate clips: latents (C, F, h, w), and a VAE of images or of clips."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from services.gpu_worker.engine.rows import Pixels, PromptEncoding
from services.gpu_worker.families.pipeline import PipelineFamily, read_to
from services.gpu_worker.families.preview import fit_factors
from shared.domain.errors import ModelError
from shared.domain.types import Size
from shared.models import ModelCard

CHUNK = 16
"""Frames that the VAE encodes or decodes at once, as in diffusers' AnimateDiffPipeline."""


class ClipFamily(PipelineFamily):
    """A PipelineFamily whose latents have an axis of frames, and whose VAE knows only images.

    A clip of one frame is an image: its pixels and its preview have no axis of frames, its latent keeps the axis.
    """

    def latent_shape(self, size: Size, frames: int = 1) -> tuple[int, ...]:
        channels, *sides = super().latent_shape(size)
        return channels, frames, *sides

    def encode_picture(self, pixels: Pixels, frames: int = 1) -> Tensor:
        clip = pixels if pixels.ndim == 4 else pixels[None]
        latent = torch.cat(_by_chunk(self._encode_frames, clip)).transpose(0, 1)
        return latent if pixels.ndim == 4 else latent.expand(-1, frames, -1, -1)

    def decode(self, latent: Tensor) -> Pixels:
        # decode one clip at a time, so that its bits do not depend on clips that finish in the same step
        return _as_image(np.concatenate(_by_chunk(self._paint, latent.transpose(0, 1))))

    def preview(self, clean: Tensor) -> Pixels:
        return _as_image(super().preview(clean))


class TimedVaeFamily(ClipFamily):
    """A ClipFamily whose VAE also compresses time: one latent frame for the first frame, and one for each
    `_frame_ratio` frames after the first.

    Tasks count frames of pixels; `frames.multiple_of` of the card has the rule. The VAE may state the mean and the
    standard deviation of each channel of its latents.
    """

    def __init__(self, card: ModelCard, pipeline: Any, **placed: Any) -> None:
        super().__init__(card, pipeline, **placed)
        if card.frames.multiple_of % self._frames_apart:
            rule = f"frames.multiple_of must be a multiple of {self._frames_apart} (got {card.frames.multiple_of})"
            raise ModelError(f"model {card.name!r}: {rule}")

    @property
    @abstractmethod
    def _frame_ratio(self) -> int:
        """Frames of pixels per latent frame."""

    @property
    def _frames_apart(self) -> int:
        """Frames between two lengths that the model generates."""
        return self._frame_ratio

    def latent_shape(self, size: Size, frames: int = 1) -> tuple[int, ...]:
        return super().latent_shape(size, (frames - 1) // self._frame_ratio + 1)

    def encode_picture(self, pixels: Pixels, frames: int = 1) -> Tensor:
        clip = pixels if pixels.ndim == 4 else np.repeat(pixels[None], frames, axis=0)
        if (len(clip) - 1) % self._frames_apart:
            rule = f"a clip to start from must have {self._frames_apart}k + 1 frames (got {len(clip)})"
            raise ModelError(f"model {self.card.name!r}: frames: {rule}")
        return self._encode_frames(clip[None])[0]

    def decode(self, latent: Tensor) -> Pixels:
        return _as_image(self._paint(latent[None])[0])

    @cached_property
    def _preview_factors(self) -> Any:
        def images(latents: Tensor) -> Pixels:
            return self._paint(latents[:, :, None])[:, 0]

        return fit_factors(self.card.preview_factors, self._channels, self._cell_px, images)

    def _normal_latents(self) -> tuple[float | Tensor, float | Tensor]:
        vae = self.pipeline.vae
        known = {**vae.config, **dict(vae.named_buffers(recurse=False))}
        scale = float(known.get("scaling_factor") or 1)
        if (mean := known.get("latents_mean")) is None:
            return scale, float(known.get("shift_factor") or 0)
        mean, spread = (
            torch.as_tensor(each, dtype=torch.float32, device=self.device).view(-1, 1, 1, 1)
            for each in (mean, known["latents_std"])
        )
        return scale / spread, mean


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
