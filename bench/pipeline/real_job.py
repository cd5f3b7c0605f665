"""The jobs of bench.pipeline_real: the bundled `large`, and a ControlNet over it, on random images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from services.trainer.pipeline.runtime.checkpoint_parts import Checkpoint
from services.trainer.pipeline.runtime.parts import Training

JOBS = ("large", "controlnet")
PIXELS = 64
CAPTIONS = ("a red ball on grass", "two blue cubes", "a green bird in the sky", "three yellow stars at night")


@dataclass(frozen=True)
class Row:
    """One sample."""

    caption: str
    seed: int


@dataclass(frozen=True)
class Images:
    """Random images with captions; the same on every rank."""

    rows: tuple[Row, ...]
    whole: int
    second_pass: bool
    size: int = PIXELS

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, start: int, stop: int) -> Images:
        return replace(self, rows=self.rows[start:stop])

    def pixels(self) -> torch.Tensor:
        return torch.stack([_drawn(row.seed, 3, self.size, self.size) for row in self.rows]).clamp(-1, 1)


def batch_of(iteration: int, count: int, second_pass: bool) -> Images:
    """Return the batch of an iteration."""
    rows = tuple(Row(CAPTIONS[at % len(CAPTIONS)], count * iteration + at) for at in range(count))
    return Images(rows, count, second_pass)


@dataclass(frozen=True)
class Noised:
    noisy: torch.Tensor
    timesteps: torch.Tensor
    target: torch.Tensor
    signal: torch.Tensor
    noise: torch.Tensor


class Velocity:
    """Noise process of v-prediction (Salimans and Ho 2022), as `large` was trained."""

    def __init__(self, levels: torch.Tensor) -> None:
        self._levels = levels

    def noised(self, latents: torch.Tensor, seeds: Sequence[int]) -> Noised:
        noise = torch.stack([_drawn(seed, *latents.shape[1:]) for seed in seeds])
        timesteps = torch.tensor([997 * seed % len(self._levels) for seed in seeds])
        level = self._levels[timesteps].view(-1, 1, 1, 1)
        signal, amount = level.sqrt(), (1 - level).sqrt()
        return Noised(signal * latents + amount * noise, timesteps, signal * noise - amount * latents, signal, amount)

    def estimate(self, prediction: torch.Tensor, at: Noised) -> torch.Tensor:
        return at.signal * at.noisy - at.noise * prediction


def loss_sum(prediction: torch.Tensor, at: Noised) -> torch.Tensor:
    return (prediction - at.target).square().flatten(1).mean(dim=1).sum()


def new_job(name: str, self_conditioned: bool) -> tuple[Training, nn.ModuleDict]:
    """Load a job; return it with its trained and its locked model."""
    from diffusers import ControlNetModel, DiffusionPipeline

    from shared.models import find_card

    torch.manual_seed(0)
    pipeline: Any = DiffusionPipeline.from_pretrained(find_card("large").folder, dtype=torch.float32)
    for part in (pipeline.vae, pipeline.text_encoder):
        part.requires_grad_(False).eval()
    objective = Velocity(pipeline.scheduler.alphas_cumprod)
    unet = pipeline.unet.train()
    checkpoint = Checkpoint(pipeline, unet, objective, loss_sum, self_conditioned=self_conditioned)
    if name == "large":
        if self_conditioned:
            unet.conv_in = _wide(unet.conv_in)
        return checkpoint.training(), nn.ModuleDict({"unet": unet})
    net = ControlNetModel.from_unet(unet, conditioning_embedding_out_channels=(16, 32, 96))
    if self_conditioned:
        net.conv_in = _wide(net.conv_in)
    return checkpoint.controlnet_training(net, lambda rows: rows.pixels()), nn.ModuleDict({"unet": unet, "net": net})


def _wide(conv: nn.Conv2d) -> nn.Conv2d:
    """Return a first convolution with as many further channels, for the estimate."""
    return nn.Conv2d(2 * conv.in_channels, conv.out_channels, 3, padding=1)


def _drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
