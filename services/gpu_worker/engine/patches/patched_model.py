"""A denoiser whose forward passes of different sizes run in one batch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import ClassVar

import torch
from torch import Tensor

from services.gpu_worker.engine.layout import Forward, Pass, denoise_by_shape
from services.gpu_worker.engine.patches.batch import Current, PatchBatch
from services.gpu_worker.engine.patches.layout import Shape, fits, layout_of
from services.gpu_worker.engine.patches.packed_batch import PackedBatch

KEPT = 8
"""Layouts of earlier batches that are kept; a batch changes only when rows join or leave, or begin to see prompts."""


class PatchedModel(ABC):
    """A loaded denoiser that also runs on patches; whole images still run as before."""

    per_patch: ClassVar[bool]
    """True if the denoiser takes a timestep and a prompt for each patch, else for each request."""
    side: int = 0
    """Latent cells per side of a patch where that is the same in all batches; else 0."""

    def __init__(self, unit: int = 1) -> None:
        """unit: latent cells per side of a token; layouts count in tokens."""
        self._unit = unit
        self.current = Current()
        self.cut_from = math.inf
        """T of the shortest runs that are cut also where the batch has one shape."""
        """True if a batch of one shape is cut as well, because blocks reuse their output patch by patch. A batch with a
        region is cut, too."""
        self._batch_of = lru_cache(maxsize=KEPT)(partial(_make_batch, PatchBatch if self.per_patch else PackedBatch))

    @abstractmethod
    def _side(self, shapes: Sequence[Shape]) -> int:
        """Return the tokens per side of a patch for images of these shapes."""

    def mixes(self, passes: Sequence[Pass]) -> bool:
        """Return whether `denoise` runs passes of several shapes in one forward pass."""
        return bool(self._cut(passes)[1])

    def denoise(self, passes: Sequence[Pass], forward: Forward) -> list[Tensor]:
        """Run the passes whose images patches fill in one forward pass, and the others once per shape.

        A batch of one shape needs no patches, and runs whole before `cut_from`.
        """
        side, cut = self._cut(passes)
        if not cut:
            return denoise_by_shape(passes, forward)
        whole = [i for i in range(len(passes)) if i not in cut]
        outputs = dict(zip(cut, self._denoise_cut([passes[i] for i in cut], side, forward), strict=True))
        outputs.update(zip(whole, denoise_by_shape([passes[i] for i in whole], forward), strict=True))
        return [outputs[i] for i in range(len(passes))]

    def _cut(self, passes: Sequence[Pass]) -> tuple[int, list[int]]:
        """Return the side of the patches, and the indices of the passes that share a forward pass; none if they have
        one shape, unless one has `cut_from` steps or more."""
        shapes = [self._shape(one) for one in passes]
        side = self._side(shapes)
        cut = [i for i, shape in enumerate(shapes) if fits(shape, side)]
        needed = any(one.row.region is not None or one.row.task.steps >= self.cut_from for one in passes)
        return side, cut if needed or len({shapes[i] for i in cut}) > 1 else []

    def _denoise_cut(self, passes: Sequence[Pass], side: int, forward: Forward) -> list[Tensor]:
        """Run one forward pass over all patches, each with the timestep and prompt of its own request."""
        device = passes[0].row.latent.device
        batch = self._batch_of(tuple(self._shape(one) for one in passes), side, device)
        own = [passes[i] for i in batch.layout.order]
        timesteps = torch.stack([one.row.position.timestep for one in own]).to(device)
        if self.per_patch:
            timesteps, own = timesteps[batch.requests], [own[request] for request in batch.layout.requests]
        self.current.batch = batch
        try:
            output = forward(
                batch.split([one.row.latent for one in passes]),
                timesteps,
                [one.encoding for one in own],
                [one.row for one in own],
            )
        finally:
            self.current.batch = None
        return batch.join(output)

    def _shape(self, one: Pass) -> Shape:
        height, width = one.row.latent.shape[-2:]
        return height // self._unit, width // self._unit


def _make_batch(kind: type[PatchBatch], shapes: tuple[Shape, ...], side: int, device: torch.device) -> PatchBatch:
    return kind(layout_of(shapes, side), device)
