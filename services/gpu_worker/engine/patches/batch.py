"""A batch of patches on a device: images cut and joined, halos from neighbours, means over whole images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from services.gpu_worker.engine.patches.layout import NONE, Layout, Resolution

Grids = Sequence[Tensor]
"""Images of each resolution of a layout, channels last: (requests, h, w, C)."""
Halo = tuple[int, int, int, int]
"""Cells of neighbours above, below, left and right of a patch."""
Pairs = tuple[Tensor, Tensor]
"""Patches that have a neighbour in one direction, and these neighbours."""


@dataclass
class Current:
    """The batch that the denoiser runs at the moment, for its operators; None: whole images."""

    batch: PatchBatch | None = None


class PatchBatch:
    """The tensors of one layout. Patches are (P, C, s, s); s shrinks with the levels of the UNet, P does not."""

    fused: ClassVar[bool] = True
    """True if the stitcher's kernels may take these patches."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.layout = layout
        self._device = device
        self.requests = torch.from_numpy(layout.requests).to(device)
        """(P,): place in `layout.order` of each patch's request."""
        self.firsts = torch.tensor(layout.request_offsets[:-1], device=device)
        """(R,): first patch of each request."""
        self.offsets = torch.tensor(layout.request_offsets, device=device)
        """(R + 1,): first patch of each request, and the number of patches."""
        self._pairs: dict[tuple[str, int], Pairs] = {}

    @property
    def squares(self) -> list[int]:
        """Patches of each row of a forward pass."""
        return [1] * self.layout.patches

    @cached_property
    def around(self) -> Tensor:
        """Return the patches around each patch and itself, (P, 9), row by row; NONE beyond the border of its image."""
        layout, own = self.layout, np.arange(self.layout.patches)
        rows = layout.up, own, layout.down
        columns = (
            np.where(row == NONE, NONE, beside[row]) for row in rows for beside in (layout.left, own, layout.right)
        )
        return torch.from_numpy(np.stack(list(columns), axis=1)).to(self._device)

    def split(self, latents: Sequence[Tensor]) -> Tensor:
        """Cut images (C, h, w), in the order of the batch, into patches (P, C, s, s)."""
        order, resolutions = self.layout.order, self.layout.resolutions
        images = (torch.stack([latents[i] for i in order[each.requests]]) for each in resolutions)
        return self.split_grids([own.movedim(1, -1) for own in images]).movedim(-1, 1).contiguous()

    def join(self, patches: Tensor) -> list[Tensor]:
        """Return the images (C, h, w) of patches (P, C, s, s), in the order of the batch."""
        joined = (image for grid in self.grids(patches.movedim(1, -1)) for image in grid.movedim(-1, 1).contiguous())
        found = dict(zip(self.layout.order, joined, strict=True))
        return [found[i] for i in range(len(found))]

    def split_grids(self, grids: Grids) -> Tensor:
        """Cut images, with any number of cells per cell of the layout, into patches (P, s, s, C)."""
        cut = []
        for each, own in zip(self.layout.resolutions, grids, strict=True):
            side = own.shape[1] // each.rows
            tiles = own.reshape(each.count, each.rows, side, each.columns, side, -1)
            cut.append(tiles.transpose(2, 3).flatten(0, 2))
        return torch.cat(cut)

    def grids(self, patches: Tensor) -> Grids:
        """Return the images of patches (P, s, s, C)."""
        found = []
        for each in self.layout.resolutions:
            tiles = patches[each.patches].reshape(each.count, each.rows, each.columns, *patches.shape[1:])
            found.append(tiles.transpose(2, 3).flatten(3, 4).flatten(1, 2))
        return found

    def by_image(self, values: Tensor, each: Resolution) -> Tensor:
        """View the patches (P, n, …) of one resolution as images (requests, patches · n, …); the order of the cells
        differs from a whole image's."""
        return values[each.patches].reshape(each.count, -1, *values.shape[2:])

    def image_mean(self, values: Tensor) -> Tensor:
        """Return for each patch the mean of `values` (P, …) over all patches of its image. Patches are equally large,
        so means over patches give means over images."""
        means = []
        for each in self.layout.resolutions:
            images = values[each.patches].reshape(each.count, -1, *values.shape[1:])
            means.append(images.mean(1, keepdim=True).expand_as(images).flatten(0, 1))
        return torch.cat(means)

    def texts(self, texts: Tensor) -> Tensor:
        """Return the text of each request, from those of the patches."""
        return texts[self.firsts]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, heads: int, own: bool) -> Tensor:
        """Attend from patches (P, n, width) to their own images, (P, n, width), or to the texts of their requests,
        (R, tokens, width)."""
        attended = []
        for part in self.layout.resolutions:
            read = (self.by_image(each, part) if own else each[part.requests] for each in (key, value))
            images = attend(self.by_image(query, part), *read, heads=heads)
            attended.append(images.reshape(-1, *query.shape[1:]))
        return torch.cat(attended)

    def with_halo(self, patches: Tensor, top: int, bottom: int, left: int, right: int) -> Tensor:
        """Widen patches (P, C, h, w) by cells of their neighbours; beyond the border of an image they are 0.

        The halo may be wider than a patch.
        """
        height, width = patches.shape[-2:]
        count, channels = patches.shape[:2]
        wide = patches.new_zeros(count, channels, top + height + bottom, left + width + right)
        wide[:, :, top : top + height, left : left + width] = patches
        # columns first, then rows with the halos of their columns: corners come from the neighbours' neighbours
        self._fill(wide.narrow(2, top, height), 3, (left, width, right), ("left", "right"))
        self._fill(wide, 2, (top, height, bottom), ("up", "down"))
        return wide

    def _fill(self, wide: Tensor, axis: int, cells: tuple[int, int, int], names: tuple[str, str]) -> None:
        """Copy the cells before and after the patches from neighbours, along one axis."""
        before, own, after = cells
        for hops in range(1, -(-before // own) + 1):
            much = min(own, before - (hops - 1) * own)
            self._copy(wide, axis, names[0], hops, before - (hops - 1) * own - much, before + own - much, much)
        for hops in range(1, -(-after // own) + 1):
            much = min(own, after - (hops - 1) * own)
            self._copy(wide, axis, names[1], hops, before + hops * own, before, much)

    def _copy(self, wide: Tensor, axis: int, name: str, hops: int, to: int, source: int, much: int) -> None:
        here, there = self._neighbours(name, hops)
        wide.narrow(axis, to, much).index_copy_(0, here, wide.narrow(axis, source, much).index_select(0, there))

    def _neighbours(self, name: str, hops: int) -> Pairs:
        if (name, hops) not in self._pairs:
            one = getattr(self.layout, name)
            reached = np.arange(self.layout.patches)
            for _ in range(hops):
                reached = np.where(reached == NONE, NONE, one[reached])
            here = np.flatnonzero(reached != NONE)
            self._pairs[name, hops] = (
                torch.from_numpy(here).to(self._device),
                torch.from_numpy(reached[here]).to(self._device),
            )
        return self._pairs[name, hops]


def attend(query: Tensor, key: Tensor, value: Tensor, *, heads: int) -> Tensor:
    """Attend from (B, n, width) to (B, m, width), in `heads` heads."""
    query, key, value = (each.reshape(*each.shape[:2], heads, -1).transpose(1, 2) for each in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
