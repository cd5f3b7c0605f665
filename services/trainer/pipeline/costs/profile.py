"""The profile of a model and a cluster: what every layer and every transfer costs (DiffusionPipe §3.1, step 1).

All times are seconds, all sizes bytes. A *local batch size* is the number of samples that one device runs at once.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

FORMAT = "afterimage-pipeline-profile"
VERSION = 1

Name = Annotated[str, Field(min_length=1, max_length=200)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Bytes = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Sizes = tuple[Annotated[int, Field(ge=1)], ...]


class _Part(BaseModel):
    """One object of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FrozenLayer(_Part):
    """One layer without training: it only runs forward."""

    name: Name
    forward_s: tuple[Seconds, ...]
    """One time per local batch size of the component."""
    output_bytes_per_sample: Bytes = 0.0
    parameter_bytes: Bytes = 0.0


class TrainableLayer(FrozenLayer):
    """One layer of a backbone."""

    backward_s: tuple[Seconds, ...]
    """One time per local batch size of the component."""
    output_bytes_per_sample: Bytes = 0.0
    """What a cut after this layer sends forward: its output, and skips that later layers still need (C^f)."""
    output_gradient_bytes_per_sample: Bytes | None = None
    """What the same cut sends back (C^b); None: as many bytes as forward."""
    gradient_bytes: Bytes = 0.0
    """G: what one all-reduce of this layer's gradients sums."""
    activation_bytes_per_sample: Bytes = 0.0
    """What stays in memory between forward and backward."""

    @property
    def returned_bytes_per_sample(self) -> float:
        sent = self.output_gradient_bytes_per_sample
        return self.output_bytes_per_sample if sent is None else sent


class _Component(_Part):
    name: Name
    local_batch_sizes: Annotated[Sizes, Field(min_length=1)]
    """Sizes at which the layers were measured, ascending."""

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        sizes = self.local_batch_sizes
        if any(low >= high for low, high in itertools.pairwise(sizes)):
            raise ValueError(f"local_batch_sizes must ascend, each size once (got {list(sizes)})")
        return self

    def _check_times(self, layer: FrozenLayer, field: str) -> None:
        times = getattr(layer, field)
        if len(times) != len(self.local_batch_sizes):
            raise ValueError(
                f"{field} of layer {layer.name} must have one time per local batch size, "
                f"{len(self.local_batch_sizes)} (got {len(times)})"
            )


class FrozenComponent(_Component):
    """A frozen encoder, or another part that is run and not trained; its layers depend on each other linearly."""

    layers: Annotated[tuple[FrozenLayer, ...], Field(min_length=1)]
    after: tuple[Name, ...] = ()
    """Components whose outputs this one reads."""

    @model_validator(mode="after")
    def _check_layers(self) -> Self:
        for layer in self.layers:
            self._check_times(layer, "forward_s")
        return self

    def forward_s(self, layer: int, local_batch: float) -> float:
        """Return the time of a layer, by its index."""
        return seconds_at(self.local_batch_sizes, self.layers[layer].forward_s, local_batch)

    def whole_s(self, local_batch: float) -> float:
        """Return the time of all layers."""
        return sum(self.forward_s(at, local_batch) for at in range(len(self.layers)))


class Backbone(_Component):
    """A trainable part whose layers can be cut into consecutive stages."""

    layers: Annotated[tuple[TrainableLayer, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _check_layers(self) -> Self:
        for layer in self.layers:
            self._check_times(layer, "forward_s")
            self._check_times(layer, "backward_s")
        for at, size in enumerate(self.local_batch_sizes):
            if not sum(layer.forward_s[at] + layer.backward_s[at] for layer in self.layers):
                raise ValueError(
                    f"a layer must take time: all forward_s and backward_s are 0 at local batch size {size}"
                )
        return self

    def forward_s(self, layer: int, local_batch: float) -> float:
        return seconds_at(self.local_batch_sizes, self.layers[layer].forward_s, local_batch)

    def backward_s(self, layer: int, local_batch: float) -> float:
        return seconds_at(self.local_batch_sizes, self.layers[layer].backward_s, local_batch)


class Link(_Part):
    """One kind of communication: R_x and L_x of Table 4."""

    latency_s: Seconds = 0.0
    bandwidth_bytes_per_s: Annotated[float, Field(gt=0)]

    def seconds(self, sent_bytes: float) -> float:
        return self.latency_s + sent_bytes / self.bandwidth_bytes_per_s


class AllReduce(Link):
    """All-reduce over a number of devices; the bandwidth counts bytes of gradients, as eq. 4 does."""

    devices: Annotated[int, Field(ge=2)]


class Profile(_Part):
    """What the planner knows: one or more backbones, the frozen components, and the links."""

    format: str = FORMAT
    version: int = VERSION
    source: str = ""
    """How the figures came about: a measurement with its machine, or a publication."""
    backbones: Annotated[tuple[Backbone, ...], Field(min_length=1)]
    frozen: tuple[FrozenComponent, ...] = ()
    """In topological order: each component after all that it reads."""
    p2p: Link
    all_reduce: tuple[AllReduce, ...] = ()
    """By number of devices, ascending; empty: gradients are summed in no time."""
    optimizer_bytes_per_parameter_byte: Bytes = 2.0
    """State of the optimizer: 2 for Adam in the precision of the parameters."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.format != FORMAT:
            raise ValueError(f"format must be {FORMAT} (got {self.format!r})")
        if self.version != VERSION:
            raise ValueError(f"version must be {VERSION}, the one that this release reads (got {self.version})")
        seen: set[str] = set()
        for component in self.frozen:
            if missing := [name for name in component.after if name not in seen]:
                raise ValueError(
                    f"frozen must be in topological order: list {missing[0]} before {component.name}, which reads it"
                )
            seen.add(component.name)
        names = [one.name for one in (*self.frozen, *self.backbones)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"each component needs a name of its own (got {twice[0]!r} twice)")
        counts = [link.devices for link in self.all_reduce]
        if counts != sorted(set(counts)):
            raise ValueError(f"all_reduce must ascend by devices, each number once (got {counts})")
        return self

    def frozen_s(self, local_batch: float) -> float:
        """Return the time of the whole frozen part."""
        return sum(component.whole_s(local_batch) for component in self.frozen)

    def all_reduce_s(self, gradient_bytes: float, devices: int) -> float:
        """Return T_S of eq. 4: the time to sum gradients over devices; 0 on one device.

        Between two measured numbers of devices the larger one counts, above all of them the largest.
        """
        if devices < 2 or not self.all_reduce:
            return 0.0
        link = next((one for one in self.all_reduce if one.devices >= devices), self.all_reduce[-1])
        return link.seconds(gradient_bytes)

    @cached_property
    def frozen_parameter_bytes(self) -> float:
        return sum(layer.parameter_bytes for component in self.frozen for layer in component.layers)


def seconds_at(sizes: Sequence[int], times: Sequence[float], local_batch: float) -> float:
    """Return the time at a local batch size, linear between the measured ones.

    Above the largest size the last two points are extended, but the time is at least that of the largest size. Below
    the smallest size the first two are, but the time stays between that of the smallest size and its proportional
    share. One measured size makes time proportional.
    """
    if local_batch <= 0:
        return 0.0
    if len(sizes) == 1:
        return times[0] * local_batch / sizes[0]
    at = min(max(bisect_right(sizes, local_batch), 1), len(sizes) - 1)
    low, high = sizes[at - 1], sizes[at]
    found = times[at - 1] + (times[at] - times[at - 1]) * (local_batch - low) / (high - low)
    if local_batch < sizes[0]:
        return min(max(found, times[0] * local_batch / sizes[0]), times[0])
    return max(found, times[-1]) if local_batch > sizes[-1] else found
