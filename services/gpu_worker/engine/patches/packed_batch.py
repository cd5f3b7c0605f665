"""A batch of packed images, of which a block may compute some."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from services.gpu_worker.engine.patches.batch import PatchBatch
from services.gpu_worker.engine.patches.layout import Layout, layout_of


class PackedBatch(PatchBatch):
    """The tensors of one layout of a transformer, whose forward pass has a row for each image."""

    @property
    def squares(self) -> list[int]:
        return np.diff(self.layout.request_offsets).tolist()

    def of_requests(
        self, places: npt.NDArray[np.int64], arguments: dict[str, Any]
    ) -> tuple[PackedBatch, dict[str, Any]]:
        """Return the batch of some requests, and the arguments of a block for these alone.

        places: theirs in `layout.order`, ascending. arguments: by name, as the block takes them for the whole batch.
        """
        part, layout = _of_requests(self.layout, tuple(places.tolist()), self.firsts.device), self.layout
        requests = torch.from_numpy(places).to(self.firsts.device)
        patches = torch.from_numpy(np.flatnonzero(np.isin(layout.requests, places))).to(self.firsts.device)

        def of_tokens(values: Tensor) -> Tensor:
            """Of the tokens of all texts and then of all images (FLUX)."""
            texts, images = values.tensor_split([-layout.patches * layout.side**2])
            own = _cut(texts, len(layout.order))[requests], _cut(images, layout.patches)[patches]
            return torch.cat([each.flatten(0, 1) for each in own])

        def narrowed(name: str, value: Any) -> Any:
            if name == "image_rotary_emb":
                return tuple(of_tokens(each) for each in value)
            if not isinstance(value, Tensor):
                return value
            if name == "encoder_hidden_states" and len(value) == layout.patches:  # padded (SANA)
                tokens = len(layout.order) * arguments["encoder_attention_mask"].shape[-1]
                texts = _cut(value.flatten(0, 1)[:tokens], len(layout.order))
                return padded(texts[requests], part.layout.patches)
            return value[patches if len(value) == layout.patches else requests]

        return part, {name: narrowed(name, value) for name, value in arguments.items()}


@lru_cache(maxsize=32)
def _of_requests(layout: Layout, places: tuple[int, ...], device: torch.device) -> PackedBatch:
    side = layout.side
    shapes = [(each.rows * side, each.columns * side) for each in layout.resolutions for _ in range(each.count)]
    return PackedBatch(layout_of([shapes[place] for place in places], side), device)


def padded(texts: Tensor, patches: int) -> Tensor:
    """Return texts (R, t, width) as (patches, m, width), with padding at the end."""
    tokens = texts.flatten(0, 1)
    return _cut(F.pad(tokens, (0, 0, 0, -len(tokens) % patches)), patches)


def _cut(tokens: Tensor, count: int) -> Tensor:
    """Return (count · n, width) as (count, n, width)."""
    return tokens.reshape(count, -1, tokens.shape[-1])
