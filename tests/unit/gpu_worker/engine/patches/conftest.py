"""Random mixes of images, whole and cut into patches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor

from services.gpu_worker.engine.patches.batch import PatchBatch
from services.gpu_worker.engine.patches.layout import Shape, layout_of

CPU = torch.device("cpu")
Grids = list[Shape]
"""Rows and columns of patches of each image."""


def grids(most: int = 5) -> st.SearchStrategy[Grids]:
    """Up to `most` images, square and oblong, of 1 to 3 patches each way."""
    return st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=most)


def images_of(mix: Grids, side: int, channels: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(channels, rows * side, columns * side, generator=generator) for rows, columns in mix]


def batch_of(images: Sequence[Tensor], side: int) -> PatchBatch:
    return PatchBatch(layout_of([(image.shape[1], image.shape[2]) for image in images], side), CPU)


def error(got: Sequence[Tensor], want: Sequence[Tensor]) -> float:
    """Largest difference, in standard deviations of the whole output."""
    spread = torch.cat([each.flatten() for each in want]).std(correction=0).clamp(min=1e-9)  # 0 where all is padding
    return max(float((one - other).abs().max() / spread) for one, other in zip(got, want, strict=True))


def each_alone(run: Callable[[Tensor], Tensor], images: Sequence[Tensor]) -> list[Tensor]:
    return [run(image[None])[0] for image in images]
