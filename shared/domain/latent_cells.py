"""Masks of pixels on the latent grid of a clip (FlexCache §4.2.2: masks are made from the final video and applied to
latents)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
HALF = 0.5
"""Share of a cell's pixels that a mask must cover to hold the cell (docs/papers/flexcache.md, Segmentation)."""


def on_cells(mask: Mask, cell_px: int, per_latent: int = 1, least: float = HALF) -> Mask:
    """Return a mask (F, H, W) of pixels on the latent grid, (f, H / cell_px, W / cell_px).

    A cell holds where the mask covers at least the share `least` of its pixels, in all its frames together. The first
    latent frame stands for the first frame; each later one stands for the next `per_latent` frames, as in causal VAEs.
    Raise ValueError for a clip that is not made of whole cells.
    """
    frames, height, width = mask.shape
    if height % cell_px or width % cell_px or frames < 1 or (frames - 1) % per_latent:
        rule = f"sides must be multiples of {cell_px}, frames a multiple of {per_latent} plus 1"
        raise ValueError(f"{rule} (got {frames} of {width}x{height})")
    blocks = mask.reshape(frames, height // cell_px, cell_px, width // cell_px, cell_px)
    shares = blocks.mean(axis=(2, 4), dtype=np.float64)
    later = shares[1:].reshape(-1, per_latent, *shares.shape[1:]).mean(axis=1)
    return np.concatenate([shares[:1], later]) >= least


def both_masks(
    object_share: npt.NDArray[np.float32], background_share: npt.NDArray[np.float32], least: float
) -> tuple[Mask, Mask]:
    """Return the masks (F, H, W) of object and background from the probabilities of both phrases.

    A pixel belongs to the more probable phrase, if that probability is at least `least`; a tie is the object's."""
    in_front = object_share >= background_share
    return in_front & (object_share >= least), ~in_front & (background_share >= least)
