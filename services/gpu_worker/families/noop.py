"""A denoiser that only sleeps a known time, for benchmarks of everything around it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from services.gpu_worker.engine.layout import groups
from services.gpu_worker.engine.rows import Pixels, PromptEncoding, Row, Stepped
from services.gpu_worker.engine.samplers import Sampler, make_sampler
from shared.domain.errors import ModelError
from shared.domain.types import Size
from shared.models import ModelCard


def load(card: ModelCard, *, device: torch.device, **unused: Any) -> NoopFamily:
    """Load `noop:?step_ms=1&row_ms=.2`: milliseconds per forward, plus milliseconds per row in it."""
    options = card.noop_options
    try:
        step_s, row_s = (float(options.get(key, 0)) / 1000 for key in ("step_ms", "row_ms"))
    except ValueError as error:
        raise ModelError(f"model path {card.path!r}: step_ms and row_ms must be numbers of milliseconds") from error
    return NoopFamily(card, device, step_s, row_s)


class NoopFamily:
    """A model whose latents never change; an image or clip shows the first three channels."""

    guidance_embedded = False
    region_side = 0

    def __init__(self, card: ModelCard, device: torch.device, step_s: float, row_s: float) -> None:
        self.card = card
        self.device = device
        self.sampler = self.sampler_named(card.sampler)
        self._step_s = step_s
        self._row_s = row_s
        self._nothing = PromptEncoding(hidden=torch.zeros(1, 1))

    @property
    def memory_bytes(self) -> int:
        return 0

    def sampler_named(self, name: str) -> Sampler:
        return make_sampler(name, self.card.scheduler_config)

    def encode_prompt(self, prompt: str, *, negative: bool = False, owner: str = "") -> PromptEncoding:
        return self._nothing

    def forget_prompts(self) -> None:
        pass  # keeps none

    def encode_picture(self, pixels: Pixels, frames: int = 1) -> Tensor:
        if pixels.ndim == 3 and frames > 1:
            pixels = np.repeat(pixels[None], frames, axis=0)
        scale = self.card.vae_scale
        colours = torch.from_numpy(pixels[..., ::scale, ::scale, :].astype(np.float32) / 127.5 - 1).movedim(-1, 0)
        return torch.cat([colours, torch.zeros(self.card.latent_channels - 3, *colours.shape[1:])])

    def latent_shape(self, size: Size, frames: int = 1) -> tuple[int, ...]:
        card, length = self.card, () if frames == 1 else (frames,)
        return card.latent_channels, *length, size.height // card.vae_scale, size.width // card.vae_scale

    def initial_noise(self, size: Size, generator: torch.Generator, frames: int = 1) -> Tensor:
        return torch.randn(self.latent_shape(size, frames), generator=generator)

    def step(self, rows: Sequence[Row]) -> list[Stepped]:
        for members in groups([tuple(row.latent.shape) for row in rows]):
            time.sleep(self._step_s + self._row_s * len(members))  # on the engine's own thread
        return [Stepped(row.latent, row.latent) for row in rows]

    def decode(self, latent: Tensor) -> Pixels:
        return self.preview(latent).repeat(self.card.vae_scale, axis=-3).repeat(self.card.vae_scale, axis=-2)

    def preview(self, clean: Tensor) -> Pixels:
        return (clean[:3].clamp(-2, 2) * 63 + 127).to(torch.uint8).movedim(0, -1).contiguous().numpy()
