"""Small profiles: layers with given times, proportional to the local batch size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from services.trainer.pipeline.costs.profile import (
    AllReduce,
    Backbone,
    FrozenComponent,
    FrozenLayer,
    Link,
    Profile,
    TrainableLayer,
)

FREE = Link(bandwidth_bytes_per_s=1e12)


def backbone(
    forward: Sequence[float],
    backward: Sequence[float] | None = None,
    *,
    name: str = "unet",
    sent: Sequence[float] | float = 0.0,
    gradients: Sequence[float] | float = 0.0,
    **more: Any,
) -> Backbone:
    """Return a backbone whose layers take these seconds for one sample."""
    count = len(forward)
    sents = [sent] * count if isinstance(sent, float) else sent
    sums = [gradients] * count if isinstance(gradients, float) else gradients
    layers = tuple(
        TrainableLayer(
            name=f"layer {at}", forward_s=(f,), backward_s=(b,), output_bytes_per_sample=sents[at],
            gradient_bytes=sums[at], **more,
        )
        for at, (f, b) in enumerate(zip(forward, backward or [2 * f for f in forward], strict=True))
    )  # fmt: skip
    return Backbone(name=name, local_batch_sizes=(1,), layers=layers)


def frozen(seconds: Sequence[float], *, name: str = "encoder", after: Sequence[str] = ()) -> FrozenComponent:
    """Return a frozen component whose layers take these seconds for one sample."""
    layers = tuple(FrozenLayer(name=f"{name} {at}", forward_s=(one,)) for at, one in enumerate(seconds))
    return FrozenComponent(name=name, local_batch_sizes=(1,), layers=layers, after=tuple(after))


def profile(
    *backbones: Backbone, frozen: Sequence[FrozenComponent] = (), p2p: Link = FREE, bandwidth: float | None = None
) -> Profile:
    """Return a profile; bandwidth: that of all-reduce over any number of devices."""
    reduces = () if bandwidth is None else (AllReduce(devices=2, bandwidth_bytes_per_s=bandwidth),)
    return Profile(backbones=backbones, frozen=tuple(frozen), p2p=p2p, all_reduce=reduces)
