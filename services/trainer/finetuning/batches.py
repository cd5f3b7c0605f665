"""Batches of training samples: the same on every rank, read row by row, with everything random decided by seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from shared.domain.types import Size


@dataclass(frozen=True, slots=True)
class Row:
    """One sample of a batch."""

    index: int
    """Row of the data set."""
    caption: str
    """Prompt that the model reads; empty where classifier-free dropout removed it."""
    seed: int
    """Seed of the sample's noise and timestep: every way to split a batch sees the same numbers."""
    original: Size
    """Size of the image file in pixels, which SDXL reads."""
    crop: tuple[int, int] = (0, 0)
    """Top and left edge of the crop in pixels of the scaled image, which SDXL reads."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples of one iteration over all ranks, of one image size; or a part of them."""

    iteration: int
    size: Size
    """Pixels of every image of the batch."""
    rows: tuple[Row, ...]
    whole: int
    """Number of samples of the iteration over all ranks: losses are sums over rows, divided by it."""
    read: Callable[[Row, Size], torch.Tensor]
    """Function that reads a row's pixels, (3, height, width) float32 in −1…1."""
    second_pass: bool = False
    """Whether the iteration is self-conditioned: a second forward pass sees the estimate of a first one."""

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, start: int, stop: int) -> Batch:
        """Return rows `start` to `stop` (exclusive) as a batch; its losses still count as parts of the whole."""
        return replace(self, rows=self.rows[start:stop])

    def pixels(self) -> torch.Tensor:
        """Read the images of all rows, (B, 3, height, width) float32 in −1…1."""
        return torch.stack([self.read(row, self.size) for row in self.rows])
