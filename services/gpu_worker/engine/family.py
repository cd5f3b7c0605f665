"""The engine's port to a model: a few functions, so that the rest of the worker does not depend on an architecture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from services.gpu_worker.engine.rows import Pixels, PromptEncoding, Row, Stepped
from services.gpu_worker.engine.samplers import Sampler
from shared.domain.types import Size
from shared.models import ModelCard


class Family(Protocol):
    """A loaded model. Latents are float32 on `device`: (C, h, w), or (C, F, h, w) where the model generates clips of F
    frames. Every method runs on the engine's thread."""

    card: ModelCard
    sampler: Sampler
    """Sampler of the card, for tasks that name none."""
    device: torch.device

    @property
    def guidance_embedded(self) -> bool:
        """True if guidance is an input of the denoiser: then no unconditional pass runs, and the negative prompt is not
        read."""
        ...

    @property
    def region_side(self) -> int:
        """Return the latent cells per side of patches whose blocks need not run in steps that hold them (`regions`); 0:
        every step computes whole images."""
        ...

    @property
    def memory_bytes(self) -> int:
        """Bytes of the weights."""
        ...

    def sampler_named(self, name: str) -> Sampler:
        """Return the sampler of this name over the model's own configuration. Raises ModelError if it does not fit."""
        ...

    def encode_prompt(self, prompt: str, *, negative: bool = False, owner: str = "") -> PromptEncoding:
        """Encode a prompt as the denoiser's conditioning, or its negative conditioning; repeated prompts of one owner
        come from a cache."""
        ...

    def forget_prompts(self) -> None:
        """Drop the encodings of earlier prompts; safe on any thread."""
        ...

    def encode_picture(self, pixels: Pixels, frames: int = 1) -> Tensor:
        """Encode an image as a latent without noise, or a clip where the model generates clips.

        frames: length of the run that starts from it. An image is then a clip of `frames` equal frames.
        """
        ...

    def latent_shape(self, size: Size, frames: int = 1) -> tuple[int, ...]:
        """Return the shape of a latent of this size and length; safe on any thread."""
        ...

    def initial_noise(self, size: Size, generator: torch.Generator, frames: int = 1) -> Tensor:
        """Return the start of a run from noise; it depends only on the generator's state, the size and the length."""
        ...

    def step(self, rows: Sequence[Row]) -> list[Stepped]:
        """Run one denoising step for rows of any shapes, each at its own timestep; results are in the order of
        the rows."""
        ...

    def decode(self, latent: Tensor) -> Pixels:
        """Decode a final latent to an image, or to a clip of more than one frame."""
        ...

    def preview(self, clean: Tensor) -> Pixels:
        """Return an image or a clip of one pixel per latent cell, by a linear map (no VAE)."""
        ...
