"""A text-to-image denoiser with its text encoder: their loss, and the sampling of latents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from services.trainer.text_to_image.architecture import Shape, new_scheduler, new_text_encoder, new_unet
from services.trainer.text_to_image.latents import Batch
from services.trainer.training import runs
from services.trainer.words import Words

TIMESTEP_CENTRE = 0.25
"""Centre of the sampled timesteps, just above the schedule's middle, where objects take shape; lower values teach
details."""


class Teacher(Protocol):
    """A trained denoiser from which another one learns."""

    def velocity(self, noisy: torch.Tensor, timesteps: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Return the guided velocity at noisy latents (B, 4, h, w), timesteps (B,), text states (B, LENGTH,
        TEXT_WIDTH)."""
        ...

    def begin(self, student: Denoiser) -> None:
        """Copy all usable weights into a fresh student."""
        ...

    def lend_text(self, student: Denoiser) -> None:
        """Copy the text encoder into a student that resumes."""
        ...


class Denoiser(nn.Module):
    """A UNet with its text encoder, and the training loss of both."""

    teacher: Teacher | None = None
    timestep_centre: float = TIMESTEP_CENTRE

    def __init__(self, shape: Shape, words: Words) -> None:
        super().__init__()
        self.unet = new_unet(shape)
        self.text = new_text_encoder(words)
        self.scheduler = new_scheduler()

    def forward(self, latents: torch.Tensor, timesteps: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the velocity at noisy latents (B, 4, h, w), timesteps (B,), token ids (B, LENGTH)."""
        states = self.text(input_ids=tokens).last_hidden_state
        found: torch.Tensor = self.unet(latents, timesteps, encoder_hidden_states=states).sample
        return found

    def loss(self, batch: Batch, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weighted squared error of the velocity, and the plain one; both scalars.

        Noise and timesteps are sampled on the CPU, so that every device gets the same values.
        """
        count, device = batch.latents.shape[0], batch.latents.device
        noise = torch.randn(batch.latents.shape, generator=generator).to(device)
        timesteps = draw_timesteps(count, generator, self.timestep_centre).to(device)
        noisy = self.scheduler.add_noise(batch.latents, noise, timesteps)
        noisy = noisy.contiguous(memory_format=torch.channels_last)
        velocity = self.scheduler.get_velocity(batch.latents, noise, timesteps)
        with runs.autocast(device):
            states = self.text(input_ids=batch.tokens).last_hidden_state
            if self.teacher is not None:
                velocity = self.teacher.velocity(noisy, timesteps, states)
            found = self.unet(noisy, timesteps, encoder_hidden_states=states).sample
        error = (found.float() - velocity).square().mean(dim=1, keepdim=True)
        return (error * batch.weights).mean(), error.detach().mean()


def draw_timesteps(count: int, generator: torch.Generator, centre: float = TIMESTEP_CENTRE) -> torch.Tensor:
    """Return (count,) timesteps: two thirds logit-normal around sigmoid(`centre`) of the schedule, one third
    uniform."""
    uniform = torch.rand(count, generator=generator)
    middle = torch.sigmoid(centre + 1.1 * torch.randn(count, generator=generator))
    pick = torch.rand(count, generator=generator) < 1 / 3
    return (torch.where(pick, uniform, middle) * 1000).long().clamp(0, 999)


@torch.no_grad()
def sample(
    model: Denoiser,
    tokens: torch.Tensor,
    empty: torch.Tensor,
    size: tuple[int, int],
    seeds: Sequence[int],
    steps: int = 50,
    guidance: float = 2.5,
) -> torch.Tensor:
    """Sample latents for token ids (B, LENGTH) by DDIM with guidance; each row's noise comes from its own seed."""
    count = tokens.shape[0]
    noise = [
        torch.randn(4, size[1] // 4, size[0] // 4, generator=torch.Generator().manual_seed(seed))
        for _, seed in zip(range(count), seeds, strict=True)
    ]
    device = runs.device_of(model)
    latents = torch.stack(noise).to(device)
    states = model.text(input_ids=torch.cat([empty.expand(count, -1), tokens]).to(device)).last_hidden_state
    model.scheduler.set_timesteps(steps)
    for timestep in model.scheduler.timesteps:
        found = model.unet(torch.cat([latents, latents]), timestep, encoder_hidden_states=states).sample.float()
        plain, told = found.chunk(2)
        latents = model.scheduler.step(plain + guidance * (told - plain), timestep, latents).prev_sample
    return latents
