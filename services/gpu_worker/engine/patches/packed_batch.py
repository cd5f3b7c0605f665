"""A batch of packed images; a block may compute some of them."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from services.gpu_worker.engine.patches.batch import PatchBatch
from services.gpu_worker.engine.patches.layout import Layout, layout_of

KEPT = 32
"""Parts of a batch that are kept: its images that a block computed."""


class PackedBatch(PatchBatch):
    """The tensors of one layout of a transformer, whose forward pass has a row for each image."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        super().__init__(layout, device)
        self._part_of = lru_cache(maxsize=KEPT)(partial(_part_of, layout, device))

    @property
    def squares(self) -> list[int]:
        return np.diff(self.layout.request_offsets).tolist()

    def of_requests(
        self, places: npt.NDArray[np.int64], arguments: dict[str, Any]
    ) -> tuple[PackedBatch, dict[str, Any]]:
        """Return the batch of some requests, and the arguments of a block for these alone.

        places: theirs in `layout.order`, ascending. arguments: by name, as the block takes them for the whole batch.
        """
        part, requests, patches = self._part_of(tuple(places.tolist()))
        layout = self.layout

        def own_tokens(values: Tensor) -> Tensor:
            """Return the rows of these requests, of the tokens of all texts and then of all images (FLUX)."""
            texts, images = values.tensor_split([-layout.patches * layout.side**2])
            own = _cut(texts, len(layout.order))[requests], _cut(images, layout.patches)[patches]
            return torch.cat([each.flatten(0, 1) for each in own])

        def narrowed(name: str, value: Any) -> Any:
            if name == "image_rotary_emb":
                return tuple(own_tokens(each) for each in value)
            if not isinstance(value, Tensor):
                return value
            if name == "encoder_hidden_states" and len(value) == layout.patches:  # padded (SANA)
                tokens = len(layout.order) * arguments["encoder_attention_mask"].shape[-1]
                texts = _cut(value.flatten(0, 1)[:tokens], len(layout.order))
                return padded(texts[requests], part.layout.patches)
            return value[patches if len(value) == layout.patches else requests]

        return part, {name: narrowed(name, value) for name, value in arguments.items()}


def _part_of(layout: Layout, device: torch.device, places: tuple[int, ...]) -> tuple[PackedBatch, Tensor, Tensor]:
    """Return the batch of these requests, and the indices of the requests and of their patches."""
    side = layout.side
    shapes = [(each.rows * side, each.columns * side) for each in layout.resolutions for _ in range(each.count)]
    patches = np.flatnonzero(np.isin(layout.requests, places))
    requests, own = torch.tensor(places, device=device), torch.from_numpy(patches).to(device)
    return PackedBatch(layout_of([shapes[place] for place in places], side), device), requests, own


def padded(texts: Tensor, patches: int) -> Tensor:
    """Return texts (R, t, width) as (patches, m, width), with padding at the end."""
    tokens = texts.flatten(0, 1)
    return _cut(F.pad(tokens, (0, 0, 0, -len(tokens) % patches)), patches)


def _cut(tokens: Tensor, count: int) -> Tensor:
    """Return (count · n, width) as (count, n, width)."""
    return tokens.reshape(count, -1, tokens.shape[-1])
