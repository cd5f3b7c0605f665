"""The noises that a latent carries: the first noise of a seed, everywhere or in some cells of a stitched latent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Cells = npt.NDArray[np.bool_]
"""Which cells carry a noise, by frame and row, (cells,): one value for all channels."""


class Within(NamedTuple):
    """The noise of a seed in some cells alone: a stitched latent has the noise of two runs (FlexCache §4.2.2)."""

    seed: int
    cells: bytes
    """One bit per cell, by frame and row, most significant bit first."""


Noise: TypeAlias = int | Within
"""A seed whose `first_noise` the latent carries, or that noise within some cells."""


def seed_of(noise: Noise) -> int:
    return noise if isinstance(noise, int) else noise.seed


def cells_of(noise: Noise, cells: int) -> Cells:
    """Return which of a latent's cells carry the noise."""
    if isinstance(noise, int):
        return np.ones(cells, np.bool_)
    return np.unpackbits(np.frombuffer(noise.cells, np.uint8), count=cells).astype(np.bool_)


def noise_within(seed: int, cells: Cells) -> Noise:
    return seed if cells.all() else Within(seed, np.packbits(cells).tobytes())


def stitched_noises(taken: Cells, ours: Sequence[Noise], theirs: Sequence[Noise]) -> tuple[Noise, ...]:
    """Return the noises of a latent that has the `taken` cells of one latent, and the other cells of another.

    Empty where one latent's noises are unknown.
    """
    found: dict[int, Cells] = {}
    for noises, side in ((ours, taken), (theirs, ~taken)):
        for noise in noises:
            seed = seed_of(noise)
            found[seed] = found.get(seed, np.zeros_like(taken)) | (cells_of(noise, taken.size) & side)
    known = ours and theirs
    return tuple(noise_within(seed, cells) for seed, cells in found.items() if known and cells.any())
