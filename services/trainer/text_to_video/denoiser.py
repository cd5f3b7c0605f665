"""The motion model: its denoiser and text encoder around those of an image model, their loss, and sampling."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessor
from torch import nn
from transformers import CLIPTextModel, CLIPTokenizer

from services.trainer.rendering.clips import FRAMES
from services.trainer.text_to_image.architecture import new_scheduler
from services.trainer.text_to_image.denoiser import draw_timesteps
from services.trainer.text_to_video.latents import ClipBatch
from services.trainer.training import runs
from services.trainer.words import Words, with_words
from shared.models.motion_unet import TextMotionUNet
from shared.models.scenes import BACKGROUND_MOTIONS, MOTIONS, motion_words

NAMES = 0.1
"""Weight of the loss of the motions' names."""


class ClipDenoiser(nn.Module):
    """A motion UNet with its text encoder, and the training loss of both."""

    def __init__(self, unet: TextMotionUNet, text: CLIPTextModel) -> None:
        super().__init__()
        self.unet, self.text, self.scheduler = unet, text, new_scheduler()
        self.reader = nn.Linear(unet.time_embedding.words, len(MOTIONS) + len(BACKGROUND_MOTIONS))
        """Reads the motions off the text, in training alone."""
        unet.set_attn_processor(AttnProcessor())  # on a CPU the fused processor's backward pass takes twice as long

    def velocity(self, noisy: torch.Tensor, timesteps: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Return the velocity at noisy latents (B, 4, F, h, w), timesteps (B,), text states (B, LENGTH, width)."""
        repeated = states.repeat_interleave(noisy.shape[2], dim=0)
        found: torch.Tensor = self.unet(noisy, timesteps, repeated).sample
        return found

    def loss(self, batch: ClipBatch, generator: torch.Generator, centre: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weighted squared error of the velocity plus that of the motions' names, and the plain error of the
        velocity; both scalars. Every frame has noise of its own; the frames of a clip share their timestep.

        Without the names, the text encoder goes on to ignore the new words, as it was trained to ignore unknown ones.
        """
        noise = torch.randn(batch.latents.shape, generator=generator).to(batch.latents.device)
        timesteps = draw_timesteps(len(noise), generator, centre).to(noise.device)
        noisy = self.scheduler.add_noise(batch.latents, noise, timesteps)
        wanted = self.scheduler.get_velocity(batch.latents, noise, timesteps)
        with runs.autocast(noise.device):
            states = self.text(input_ids=batch.tokens).last_hidden_state
            found = self.velocity(noisy, timesteps, states)
        error = (found.float() - wanted).square().mean(dim=1, keepdim=True)
        return (error * batch.weights).mean() + NAMES * self._misread(states, batch), error.detach().mean()

    def _misread(self, states: torch.Tensor, batch: ClipBatch) -> torch.Tensor:
        scores = self.reader(self.unet.time_embedding.word(states).amax(dim=1)).float()
        parts = scores.split([len(MOTIONS), len(BACKGROUND_MOTIONS)], dim=1)
        lost = [F.cross_entropy(one, batch.named[:, i], reduction="sum") for i, one in enumerate(parts)]
        return torch.stack(lost).sum() / len(states)


def clip_words(image_model: Path) -> CLIPTokenizer:
    """Return the image model's tokenizer with a token for each word of the motions."""
    return with_words(CLIPTokenizer.from_pretrained(image_model / "tokenizer"), motion_words())


def begin_with(image_model: Path, tokenizer: CLIPTokenizer) -> ClipDenoiser:
    """Return an untrained motion model around an image model's exported weights.

    New words get random embeddings: those of their former pieces are all alike to the text encoder, which was trained
    to ignore unknown words."""
    unet = UNet2DConditionModel.from_pretrained(image_model / "unet", torch_dtype=torch.float32, use_safetensors=True)
    text = CLIPTextModel.from_pretrained(
        image_model / "text_encoder", torch_dtype=torch.float32, use_safetensors=True, attn_implementation="eager"
    )
    known = text.get_input_embeddings().weight.detach().clone()
    text.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with torch.no_grad():
        table = text.get_input_embeddings().weight
        table[len(known) :] = known.mean(dim=0) + known.std(dim=0) * torch.randn(
            len(tokenizer) - len(known), known.shape[1]
        )
    return ClipDenoiser(TextMotionUNet.around(unet), text)


@torch.no_grad()
def sample_clips(
    model: ClipDenoiser,
    words: Words,
    prompts: Sequence[str],
    seeds: Sequence[int],
    steps: int = 50,
    guidance: float = 2.5,
    side: int = 16,
    frames: int = FRAMES,
) -> torch.Tensor:
    """Sample latents (B, 4, F, side, side) by DDIM with guidance; each clip's noise comes from its own seed."""
    noise = [torch.randn(4, frames, side, side, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    latents = torch.stack(noise).to(runs.device_of(model))
    tokens = torch.tensor([words.ids(prompt) for prompt in ["", *prompts]]).to(latents.device)
    states = model.text(input_ids=tokens).last_hidden_state
    states = torch.cat([states[:1].expand_as(states[1:]), states[1:]])
    model.scheduler.set_timesteps(steps)
    for timestep in model.scheduler.timesteps:
        found = model.velocity(torch.cat([latents, latents]), timestep.expand(2 * len(latents)), states).float()
        plain, prompted = found.chunk(2)
        latents = model.scheduler.step(plain + guidance * (prompted - plain), timestep, latents).prev_sample
    return latents
