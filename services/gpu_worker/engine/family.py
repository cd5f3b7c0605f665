"""The engine's port to a model: a few functions, so that the rest of the worker knows no architecture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from services.gpu_worker.engine.rows import Pixels, PromptEncoding, Row, Stepped
from services.gpu_worker.engine.samplers import Sampler, Schedule
from shared.domain.types import Size
from shared.models import ModelCard


class Family(Protocol):
    """A loaded model. Latents are float32 (C, h, w) on `device`; every method runs on the engine's thread."""

    card: ModelCard
    sampler: Sampler
    device: torch.device

    @property
    def guidance_embedded(self) -> bool:
        """Whether guidance is an input of the denoiser: then no unconditional half runs, no negative prompt is read."""
        ...

    @property
    def memory_bytes(self) -> int:
        """What the weights take."""
        ...

    def encode_prompt(self, prompt: str, *, negative: bool = False) -> PromptEncoding:
        """What the denoiser is conditioned on, or guided away from; repeated prompts come from a cache."""
        ...

    def encode_picture(self, pixels: Pixels) -> Tensor:
        """The picture's latent, (C, h, w), without noise."""
        ...

    def latent_shape(self, size: Size) -> tuple[int, int, int]:
        """(C, h, w) of a latent of this size; safe on any thread."""
        ...

    def initial_noise(self, size: Size, generator: torch.Generator) -> Tensor:
        """Where a run from noise begins; depends on the generator's state and the size only."""
        ...

    def add_noise(self, latent: Tensor, noise: Tensor, schedule: Schedule, done: int) -> Tensor:
        """A clean latent brought to the noise level of a run with `done` steps behind it."""
        ...

    def step(self, rows: Sequence[Row]) -> list[Stepped]:
        """One denoising step for rows of any sizes at their own timesteps; rows in, rows out, in order."""
        ...

    def decode(self, latent: Tensor) -> Pixels:
        """The picture of a final latent."""
        ...

    def preview(self, clean: Tensor) -> Pixels:
        """A picture of one pixel per latent cell, by a linear map (no VAE)."""
        ...
