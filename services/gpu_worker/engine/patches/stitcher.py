"""The boundary stitcher: GroupNorm, SiLU and the halo of the next convolution in two kernels (PatchedServe §4.2.2).

Without Triton, or on a CPU, the same function runs in plain torch. Triton's interpreter (TRITON_INTERPRET=1) runs the
kernels on a CPU.
"""

from __future__ import annotations

import importlib
import os
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from diffusers.models.resnet import ResnetBlock2D
from torch import Tensor, nn

from services.gpu_worker.engine.patches.batch import Current, Halo, PatchBatch

KERNELS = "services.gpu_worker.engine.patches.stitcher_kernels"
COMPUTED = (torch.float32, torch.float16, torch.bfloat16)
"""Types of patches that the kernels read; they compute in float32."""


class StitchedResnetBlock(ResnetBlock2D):
    """A ResnetBlock2D whose two norms write their output with the halo that the next convolution reads.

    It shares the modules of `block`. Whole images run through diffusers' forward.
    """

    def __init__(self, block: ResnetBlock2D, current: Current) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(block.__dict__)
        self._current = current

    def forward(self, input_tensor: Tensor, temb: Tensor | None, *rest: Any, **named: Any) -> Tensor:
        batch = self._current.batch
        if batch is None:
            whole: Tensor = super().forward(input_tensor, temb, *rest, **named)
            return whole
        hidden = self.conv1.on_wide(stitched(batch, input_tensor, self.norm1, self.conv1.halo))
        if temb is not None and self.time_emb_proj is not None:
            temb = self.time_emb_proj(temb if self.skip_time_act else F.silu(temb))[:, :, None, None]
        if temb is not None:
            hidden = hidden + temb
        hidden = self.conv2.on_wide(stitched(batch, hidden, self.norm2, self.conv2.halo))
        if self.conv_shortcut is not None:
            input_tensor = self.conv_shortcut(input_tensor)
        out: Tensor = (input_tensor + hidden) / self.output_scale_factor
        return out


def fuses(block: ResnetBlock2D) -> bool:
    """Return whether nothing stands between the block's norms and its convolutions but SiLU."""
    between = block.upsample, block.downsample, block.dropout.p or None
    plain = type(block.nonlinearity) is nn.SiLU and block.time_embedding_norm == "default"
    return plain and all(each is None for each in between) and block.norm1.affine and block.norm2.affine


def stitched(batch: PatchBatch, patches: Tensor, norm: Any, halo: Halo) -> Tensor:
    """Return SiLU(norm(patches)), widened by cells of the neighbours: (P, C, top + h + bottom, left + w + right)."""
    if not batch.fused or (kernels := kernels_for(patches, halo)) is None:
        return batch.with_halo(F.silu(norm(patches)), *halo)
    wide: Tensor = kernels.stitch(batch, patches.contiguous(), norm, halo)
    return wide


def kernels_for(patches: Tensor, halo: Halo) -> Any | None:
    """Return the module of the kernels if they take these patches: no halo reaches further than the next patch."""
    top, bottom, left, right = halo
    near = max(top, bottom) <= patches.shape[-2] and max(left, right) <= patches.shape[-1]
    here = patches.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"
    return _kernels() if near and here and patches.dtype in COMPUTED else None


@cache
def _kernels() -> Any | None:
    """Return the module of the kernels; None without Triton."""
    try:
        return importlib.import_module(KERNELS)
    except ImportError:
        return None
