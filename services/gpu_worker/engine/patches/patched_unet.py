"""A UNet whose forward passes of different sizes run in one batch of patches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from services.gpu_worker.engine.patches.layout import Shape
from services.gpu_worker.engine.patches.operators import replace_operators
from services.gpu_worker.engine.patches.patched_model import PatchedModel


class PatchedUNet(PatchedModel):
    """A loaded UNet2DConditionModel with its operators replaced; `side`: latent cells per side of a patch.

    Raises ValueError for modules that do not run on patches.
    """

    per_patch = True

    def __init__(self, unet: Any, side: int) -> None:
        super().__init__()
        self.side = side
        replace_operators(unet, self.current)

    def _side(self, shapes: Sequence[Shape]) -> int:
        return self.side
