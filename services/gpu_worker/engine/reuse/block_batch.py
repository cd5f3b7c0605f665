"""A batch of patches as one block sees it: operators run on the patches to compute, and read the others from the last
step (PatchedServe §5.1)."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from services.gpu_worker.engine.patches.batch import PatchBatch, attend
from services.gpu_worker.engine.reuse.block_cache import Ints


class BlockBatch(PatchBatch):
    """Records what operators read of other patches; with `computed`, its tensors have only these patches.

    Each operator that sees neighbours or the whole image gives its values of the computed patches. Those of reused
    patches are the ones that the same operator gave when they were computed.
    """

    fused = False

    def __init__(self, batch: PatchBatch, computed: Ints | None = None, inner: tuple[Tensor, ...] = ()) -> None:
        """computed: places of the patches to compute, ascending; None: all. inner: `recorded` of the run before."""
        self.__dict__.update(batch.__dict__)  # the layout's tensors are shared
        self._whole, self._known = batch, inner
        self._computed = None if computed is None else torch.from_numpy(computed).to(batch.firsts.device)
        self._places = computed
        self.recorded: tuple[Tensor, ...] = ()
        """(P, …) values of all patches, in the order in which operators gave them."""

    def with_halo(self, patches: Tensor, top: int, bottom: int, left: int, right: int) -> Tensor:
        return self._own(self._whole.with_halo(self._filled(patches), top, bottom, left, right))

    def image_mean(self, values: Tensor) -> Tensor:
        return self._own(self._whole.image_mean(self._filled(values)))

    def texts(self, texts: Tensor) -> Tensor:
        return self._whole.texts(texts) if self._places is None else texts[self._firsts]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, heads: int, own: bool) -> Tensor:
        if own:
            key, value = self._filled(key), self._filled(value)
        if self._places is None:
            return self._whole.attend(query, key, value, heads=heads, own=own)
        offsets, attended = self.layout.request_offsets, []
        for place, (request, first, last) in enumerate(self._requests):
            images = slice(offsets[request], offsets[request + 1]) if own else slice(place, place + 1)
            read = (each[images].flatten(0, 1)[None] for each in (key, value))
            attended.append(attend(query[first:last].flatten(0, 1)[None], *read, heads=heads))
        return torch.cat([each[0] for each in attended]).view_as(query)

    @cached_property
    def _requests(self) -> list[tuple[int, int, int]]:
        """Return the requests with computed patches, each with the slice of these patches."""
        assert self._places is not None
        owners = self.layout.requests[self._places]
        firsts = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist()]
        return [(int(owners[at]), at, stop) for at, stop in zip(firsts, [*firsts[1:], len(owners)], strict=True)]

    @cached_property
    def _firsts(self) -> Tensor:
        """Return the first computed patch of each request."""
        return torch.tensor([first for _, first, _ in self._requests], device=self.firsts.device)

    def _filled(self, values: Tensor) -> Tensor:
        """Return the values of all patches, and record them."""
        if self._computed is not None:
            values = self._known[len(self.recorded)].index_copy(0, self._computed, values)
        self.recorded = (*self.recorded, values)
        return values

    def _own(self, values: Tensor) -> Tensor:
        return values if self._computed is None else values.index_select(0, self._computed)
