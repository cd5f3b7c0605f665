"""Cheap previews by a linear map from latent channels to RGB, fitted once per model to its own decoder."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from services.gpu_worker.engine.rows import Latent, Pixels

Factors = npt.NDArray[np.float32]
"""(channels + 1, 3): one row per channel, then the offset."""

SAMPLES = 8
SIDE = 16
"""Latent cells per side of the random latents to which the map is fitted."""


def fit_factors(
    known: tuple[tuple[float, float, float], ...], channels: int, scale: int, paint: Callable[[torch.Tensor], Pixels]
) -> Factors:
    """Return the card's factors, or fit the least-squares map from smooth random latents to the images that `paint`
    decodes.

    paint: (B, channels, h, w) → (B, h·scale, w·scale, 3) uint8.
    """
    if known:
        return np.asarray(known, dtype=np.float32)
    coarse = torch.randn(SAMPLES, channels, SIDE // 4, SIDE // 4, generator=torch.Generator().manual_seed(0))
    # neighbouring cells of a real latent are alike; white noise decodes to grey
    latents = torch.nn.functional.interpolate(coarse * 1.3, size=(SIDE, SIDE), mode="bilinear")
    pictures = paint(latents).astype(np.float32)
    cells = pictures.reshape(SAMPLES, SIDE, scale, SIDE, scale, 3).mean(axis=(2, 4)).reshape(-1, 3)
    inputs = latents.permute(0, 2, 3, 1).reshape(-1, channels).numpy()
    design = np.concatenate([inputs, np.ones((len(inputs), 1), np.float32)], axis=1)
    return np.linalg.lstsq(design, cells, rcond=None)[0].astype(np.float32)


def project(latent: Latent, factors: Factors) -> Pixels:
    """Map (channels, …, h, w) to (…, h, w, 3) uint8, one pixel per latent cell."""
    painted = np.tensordot(latent, factors[:-1], axes=(0, 0)) + factors[-1]
    return np.clip(painted, 0, 255).astype(np.uint8)
