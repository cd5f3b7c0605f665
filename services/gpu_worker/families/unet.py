"""Latent diffusion with a UNet in StableDiffusionPipeline's layout: SD 1.x, SD 2.x and the bundled models."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from services.gpu_worker.layout import step_by_size
from services.gpu_worker.preview import fit_factors, project
from services.gpu_worker.rows import Pixels, PromptEncoding, Row, Stepped
from services.gpu_worker.samplers import Schedule, make_sampler
from shared.errors import ModelError
from shared.models import ModelCard
from shared.types import Size


def load(card: ModelCard, *, device: torch.device, batch_invariant: int, prompts_kept: int) -> UNetFamily:
    """The checkpoint through DiffusionPipeline.from_pretrained, whether bundled, in a folder or from the hub."""
    import diffusers
    import transformers

    for logging in (transformers.utils.logging, diffusers.utils.logging):  # notices about torchvision, bars per file
        logging.disable_progress_bar()
        logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # diffusers on checkpoints older than itself
        try:
            pipeline = diffusers.DiffusionPipeline.from_pretrained(
                card.folder, torch_dtype=getattr(torch, card.dtype), use_safetensors=True, local_files_only=True
            )
        except (OSError, ValueError, RuntimeError, AttributeError) as error:
            raise ModelError(f"model {card.name!r}: cannot load {card.folder}: {error}") from error
    if not isinstance(pipeline, diffusers.StableDiffusionPipeline):
        found = type(pipeline).__name__
        raise ModelError(f"model {card.name!r}: family 'unet' runs StableDiffusionPipeline, not {found}")
    pipeline.set_progress_bar_config(disable=True)
    return UNetFamily(card, pipeline.to(device), device, batch_invariant, prompts_kept)


class UNetFamily:
    """Six functions over a StableDiffusionPipeline's own components."""

    def __init__(
        self, card: ModelCard, pipeline: Any, device: torch.device, batch_invariant: int, prompts_kept: int
    ) -> None:
        self.card = card
        self.pipeline = pipeline
        self.device = device
        # the pipeline corrects outdated scheduler configurations when it loads: its scheduler is the reference
        self.sampler = make_sampler(card.sampler, dict(pipeline.scheduler.config), eta=card.eta)
        self._batch_invariant = batch_invariant
        self._encode = lru_cache(maxsize=prompts_kept)(self._encode_prompt)
        self._channels = int(pipeline.unet.config.in_channels)
        self._scale = float(pipeline.vae.config.scaling_factor)
        # the VAE's own: the card of a hub id was written before anyone saw the weights
        self._cell_px = int(pipeline.vae_scale_factor)
        self._dtype = pipeline.unet.dtype

    @property
    def memory_bytes(self) -> int:
        modules = [part for part in self.pipeline.components.values() if isinstance(part, torch.nn.Module)]
        return sum(p.numel() * p.element_size() for module in modules for p in module.parameters())

    def encode_prompt(self, prompt: str) -> PromptEncoding:
        return self._encode(prompt)

    def _encode_prompt(self, prompt: str) -> PromptEncoding:
        tokenizer = self.pipeline.tokenizer
        length = len(tokenizer(prompt).input_ids)
        most = int(tokenizer.model_max_length)
        warning = f"prompt: only the first {most - 2} of {length - 2} tokens were read" if length > most else ""
        hidden, _ = self.pipeline.encode_prompt(prompt, self.device, 1, False)
        return PromptEncoding(hidden=hidden[0], warning=warning)

    def encode_picture(self, pixels: Pixels) -> Tensor:
        picture = torch.from_numpy(pixels).to(self.device).permute(2, 0, 1)[None].float() / 127.5 - 1
        encoded = self.pipeline.vae.encode(picture.to(self._dtype))
        # AutoencoderTiny gives latents, AutoencoderKL a distribution
        latent = encoded.latents if hasattr(encoded, "latents") else encoded.latent_dist.mode()
        return latent[0].float() * self._scale

    def latent_shape(self, size: Size) -> tuple[int, int, int]:
        return self._channels, size.height // self._cell_px, size.width // self._cell_px

    def initial_noise(self, size: Size, generator: torch.Generator) -> Tensor:
        return torch.randn(self.latent_shape(size), generator=generator).to(self.device)

    def add_noise(self, latent: Tensor, noise: Tensor, schedule: Schedule, done: int) -> Tensor:
        return self.sampler.add_noise(latent, noise, schedule, done)

    def step(self, rows: Sequence[Row]) -> list[Stepped]:
        return step_by_size(rows, self._forward, self.sampler, self._batch_invariant)

    def _forward(
        self, latents: Tensor, timesteps: Tensor, encodings: Sequence[PromptEncoding], rows: Sequence[Row]
    ) -> Tensor:
        hidden = torch.stack([encoding.hidden for encoding in encodings])
        output = self.pipeline.unet(
            latents.to(self._dtype), timesteps, encoder_hidden_states=hidden, return_dict=False
        )[0]
        return output.float()

    def decode(self, latent: Tensor) -> Pixels:
        # one picture at a time: its bits then do not depend on who finished together
        return self._paint(latent[None])[0]

    def preview(self, clean: Tensor) -> Pixels:
        return project(clean.cpu().numpy(), self._preview_factors)

    @cached_property
    def _preview_factors(self) -> Any:
        return fit_factors(self.card.preview_factors, self._channels, self._cell_px, self._paint)

    def _paint(self, latents: Tensor) -> Pixels:
        """(B, C, h, w) → (B, H, W, 3)."""
        scaled = (latents / self._scale).to(self._dtype)
        picture = self.pipeline.vae.decode(scaled.to(self.device), return_dict=False)[0].float()
        return ((picture / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
