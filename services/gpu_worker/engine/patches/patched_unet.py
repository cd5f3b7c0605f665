"""A UNet whose forward passes of different sizes run in one batch of patches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from services.gpu_worker.engine.layout import Forward, Pass, denoise_by_shape
from services.gpu_worker.engine.patches.batch import PatchBatch
from services.gpu_worker.engine.patches.layout import Shape, fits, layout_of
from services.gpu_worker.engine.patches.operators import Current, replace_operators

KEPT = 8
"""Layouts of earlier batches that are kept; a batch changes only when rows join or leave, or begin to see prompts."""


class PatchedUNet:
    """A loaded UNet2DConditionModel with its operators replaced; whole images still run as before.

    Raises ValueError for modules that do not run on patches.
    """

    def __init__(self, unet: Any, side: int) -> None:
        self._side = side
        self._current = Current()
        replace_operators(unet, self._current)
        self._batch_of = lru_cache(maxsize=KEPT)(self._make_batch)

    def denoise(self, passes: Sequence[Pass], forward: Forward) -> list[Tensor]:
        """Run the passes whose images patches fill in one forward pass, and the others once per shape.

        A batch of one shape needs no patches, and runs whole.
        """
        shapes = [_shape(one) for one in passes]
        cut = [i for i, shape in enumerate(shapes) if fits(shape, self._side)]
        if len({shapes[i] for i in cut}) < 2:
            return denoise_by_shape(passes, forward)
        whole = [i for i in range(len(passes)) if i not in cut]
        outputs = dict(zip(cut, self._denoise_cut([passes[i] for i in cut], forward), strict=True))
        outputs.update(zip(whole, denoise_by_shape([passes[i] for i in whole], forward), strict=True))
        return [outputs[i] for i in range(len(passes))]

    def _denoise_cut(self, passes: Sequence[Pass], forward: Forward) -> list[Tensor]:
        """Run one forward pass over all patches, each with the timestep and prompt of its own request."""
        device = passes[0].row.latent.device
        batch = self._batch_of(tuple(_shape(one) for one in passes), device)
        order = batch.layout.order
        timesteps = torch.stack([passes[i].row.position.timestep for i in order]).to(device)
        per_patch = [passes[order[request]] for request in batch.layout.requests]
        self._current.batch = batch
        try:
            output = forward(
                batch.split([one.row.latent for one in passes]),
                timesteps[batch.requests],
                [one.encoding for one in per_patch],
                [one.row for one in per_patch],
            )
        finally:
            self._current.batch = None
        return batch.join(output)

    def _make_batch(self, shapes: tuple[Shape, ...], device: torch.device) -> PatchBatch:
        return PatchBatch(layout_of(shapes, self._side), device)


def _shape(one: Pass) -> Shape:
    height, width = one.row.latent.shape[-2:]
    return height, width
