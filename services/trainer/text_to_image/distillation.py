"""Guidance distillation of a large denoiser into a small one, which then needs one row per step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from diffusers import UNet2DConditionModel
from transformers import CLIPTextModel

from services.trainer.text_to_image.denoiser import Denoiser
from services.trainer.words import Words

GUIDANCE = 2.5
"""Guidance of the teacher, and so of the student's images."""


class GuidedTeacher:
    """An exported denoiser with classifier-free guidance.

    Source: Meng et al. 2023, "On distillation of guided diffusion models", stage one at one fixed guidance."""

    def __init__(
        self, folder: Path, words: Words, guidance: float = GUIDANCE, device: torch.device | None = None
    ) -> None:
        self._unet = UNet2DConditionModel.from_pretrained(
            folder / "unet", torch_dtype=torch.float32, use_safetensors=True
        )
        self._unet.eval().requires_grad_(False).to(device or "cpu", memory_format=torch.channels_last)
        self._text = CLIPTextModel.from_pretrained(
            folder / "text_encoder", torch_dtype=torch.float32, use_safetensors=True
        )
        self._text.eval().requires_grad_(False).to(device or "cpu")
        self._guidance = guidance
        with torch.no_grad():
            ids = torch.tensor([words.ids("")], device=device)
            self._nothing = self._text(input_ids=ids).last_hidden_state

    @torch.no_grad()
    def velocity(self, noisy: torch.Tensor, timesteps: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Return the guided velocity (B, 4, h, w) at noisy latents, timesteps (B,), text states (B, LENGTH,
        TEXT_WIDTH)."""
        count = noisy.shape[0]
        nothing = self._nothing.to(states.dtype).expand(count, -1, -1)
        found = self._unet(
            torch.cat([noisy, noisy]), timesteps.repeat(2), encoder_hidden_states=torch.cat([nothing, states])
        ).sample.float()
        plain, told = found.chunk(2)
        guided: torch.Tensor = plain + self._guidance * (told - plain)
        return guided

    def lend_text(self, student: Denoiser) -> None:
        """Copy the text encoder, which stays frozen in the student."""
        student.text.load_state_dict(self._text.state_dict())

    def begin(self, student: Denoiser) -> None:
        """Copy the text encoder, and every UNet layer that the student has in the same shape.

        The student's levels are the teacher's upper ones; the bottom is cut away (as BK-SDM prunes, Kim et al.
        2023)."""
        self.lend_text(student)
        wanted = student.unet.state_dict()
        dropped = len(self._unet.config.block_out_channels) - len(student.unet.config.block_out_channels)
        found = _upper_levels(self._unet.state_dict(), dropped)
        kept = {name: found[name] for name in wanted if name in found and found[name].shape == wanted[name].shape}
        student.unet.load_state_dict(kept, strict=False)


def _upper_levels(state: Mapping[str, torch.Tensor], dropped: int) -> dict[str, torch.Tensor]:
    """Rename a UNet's weights without its lowest levels: the up path begins that many blocks later."""
    named: dict[str, torch.Tensor] = {}
    for name, value in state.items():
        if not name.startswith("up_blocks."):
            named[name] = value
            continue
        _, level, rest = name.split(".", 2)
        if int(level) >= dropped:
            named[f"up_blocks.{int(level) - dropped}.{rest}"] = value
    return named
