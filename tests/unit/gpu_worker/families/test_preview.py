"""Preview factors find the linear part of any decoder."""

from __future__ import annotations

import numpy as np
import torch

from services.gpu_worker.engine.rows import Pixels
from services.gpu_worker.families.preview import fit_factors, project

CHANNELS, SCALE = 4, 4


def decoder(latents: torch.Tensor) -> Pixels:
    """Colours are mixtures of the channels, gently bent, with a fine pattern inside every cell."""
    mix = torch.tensor([[40.0, 5, -10], [0, 30, 20], [10, -20, 15], [-5, 5, 25]])
    colours = 128 + 90 * torch.tanh(torch.einsum("bchw,cr->bhwr", latents, mix) / 90)
    pixels = colours.repeat_interleave(SCALE, 1).repeat_interleave(SCALE, 2)
    pattern = torch.arange(pixels.shape[1]) % 2 * 10 - 5
    return (pixels + pattern.view(1, -1, 1, 1)).clamp(0, 255).to(torch.uint8).numpy()


def test_previews_resemble_the_picture() -> None:
    factors = fit_factors((), CHANNELS, SCALE, decoder)
    latent = torch.randn((1, CHANNELS, 12, 8), generator=torch.Generator().manual_seed(5))
    small = decoder(latent)[0].reshape(12, SCALE, 8, SCALE, 3).mean(axis=(1, 3))
    preview = project(latent[0].numpy(), factors)
    assert preview.shape == (12, 8, 3)
    assert np.corrcoef(small.flatten(), preview.flatten())[0, 1] > 0.98


def test_the_cards_own_factors_win() -> None:
    known = ((1.0, 0.0, 0.0),) * CHANNELS + ((10.0, 20.0, 30.0),)
    factors = fit_factors(known, CHANNELS, SCALE, decoder)
    assert project(np.ones((CHANNELS, 1, 1), np.float32), factors).tolist() == [[[14, 20, 30]]]
