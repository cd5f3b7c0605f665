"""Triton kernels of the boundary stitcher (PatchedServe §4.2.2, Fig. 7 C). Importing this needs Triton."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.gpu_worker.engine.patches.batch import Halo, PatchBatch

BLOCK = 1024
"""Values that one program reads at a time for the statistics."""


def stitch(batch: PatchBatch, patches: Tensor, norm: Any, halo: Halo) -> Tensor:
    """Return SiLU(GroupNorm(patches)) of contiguous patches (P, C, h, w) with their halo, which is 0 beyond an image.

    The first kernel computes mean and deviation of each image and group, the second one normalises, activates and
    writes each cell to its own patch and to the halos of its neighbours.
    """
    count, channels, height, width = patches.shape
    top, bottom, left, right = halo
    requests, groups = len(batch.firsts), norm.num_groups
    mean = torch.empty(requests, groups, device=patches.device)
    scale = torch.empty_like(mean)
    values = channels // groups * height * width
    _statistics[(requests, groups)](patches, batch.offsets, mean, scale, values, groups, norm.eps, BLOCK=BLOCK)
    wide = patches.new_zeros(count, channels, top + height + bottom, left + width + right)
    _stitch[(count, channels)](
        patches, wide, batch.requests, batch.around, mean, scale, norm.weight, norm.bias,
        channels, groups, height, width, top, left, *wide.shape[2:], CELLS=triton.next_power_of_2(height * width),
    )  # fmt: skip
    return wide


@triton.jit
def _statistics(patches, offsets, mean, scale, values, groups, eps, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Mean and 1 / √(variance + eps) of one image and group, in two passes; its patches follow each other."""
    request, group = tl.program_id(0), tl.program_id(1)
    first, last = tl.load(offsets + request), tl.load(offsets + request + 1)
    lanes = tl.arange(0, BLOCK)
    count = ((last - first) * values).to(tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for patch in range(first, last):
        own = patches + (patch * groups + group) * values
        for at in range(0, values, BLOCK):
            total += tl.load(own + at + lanes, mask=at + lanes < values, other=0.0).to(tl.float32)
    centre = tl.sum(total) / count
    total = tl.zeros([BLOCK], tl.float32)
    for patch in range(first, last):
        own = patches + (patch * groups + group) * values
        for at in range(0, values, BLOCK):
            some = tl.load(own + at + lanes, mask=at + lanes < values, other=0.0).to(tl.float32) - centre
            total += tl.where(at + lanes < values, some * some, 0.0)
    tl.store(mean + request * groups + group, centre)
    tl.store(scale + request * groups + group, 1.0 / tl.sqrt(tl.sum(total) / count + eps))


@triton.jit
def _stitch(  # type: ignore[no-untyped-def]
    patches, wide, requests, around, mean, scale, weight, bias,
    channels, groups, height, width, top, left, wide_height, wide_width, CELLS: tl.constexpr,
):  # fmt: skip
    """Normalise and activate one channel of one patch; write its cells to its own place, and to the halos of the eight
    patches around."""
    patch, channel = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = tl.load(requests + patch) * groups + channel // (channels // groups)
    cells = tl.arange(0, CELLS)
    here = cells < height * width
    value = tl.load(patches + (patch * channels + channel) * height * width + cells, mask=here, other=0.0).to(
        tl.float32
    )
    value = (value - tl.load(mean + place)) * tl.load(scale + place)
    value = value * tl.load(weight + channel).to(tl.float32) + tl.load(bias + channel).to(tl.float32)
    value = (value / (1.0 + tl.exp(-value))).to(wide.dtype.element_ty)
    for direction in tl.static_range(9):
        there = tl.load(around + patch * 9 + direction)
        if there >= 0:
            row = top + cells // width - (direction // 3 - 1) * height
            column = left + cells % width - (direction % 3 - 1) * width
            inside = (row >= 0) & (row < wide_height) & (column >= 0) & (column < wide_width)
            at = ((there * channels + channel) * wide_height + row) * wide_width + column
            tl.store(wide + at, value, mask=here & inside)
