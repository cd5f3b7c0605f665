"""A profile of equal layers from one number: the time of the frozen part as a share of the trainable part's.

With it the simulator reproduces Fig. 4: equal stages, free transfers, no synchronisation.
"""

from __future__ import annotations

import math

from services.trainer.pipeline.costs.profile import (
    Backbone,
    FrozenComponent,
    FrozenLayer,
    Link,
    Profile,
    TrainableLayer,
)

FORWARD_SHARE = 1 / 3
"""Forward time of a layer, as a share of forward and backward: a backward pass takes about twice as long."""
FROZEN_LAYERS = 42
"""Layers of the frozen part in Fig. 5."""
LEAST_BATCH = 64


def uniform_batch(stages: int, micro_batches: int) -> int:
    """Return a batch of at least 64 that divides evenly into micro-batches and over devices."""
    step = math.lcm(stages, micro_batches)
    return step * math.ceil(LEAST_BATCH / step)


def uniform_profile(
    frozen_share: float, stages: int, batch: int, *, trainable_s: float = 1.0, frozen_layers: int = FROZEN_LAYERS
) -> Profile:
    """Return a profile of one backbone with a layer per stage, and one frozen component of equal layers.

    trainable_s: forward and backward time of the backbone on one device, for its part of the batch, batch / stages.
    """
    local = max(batch // stages, 1)
    layer_s = trainable_s / stages
    backbone = tuple(
        TrainableLayer(
            name=f"layer {at}",
            forward_s=(layer_s * FORWARD_SHARE,),
            backward_s=(layer_s * (1 - FORWARD_SHARE),),
        )
        for at in range(stages)
    )
    encoder = tuple(
        FrozenLayer(name=f"frozen {at}", forward_s=(trainable_s * frozen_share / frozen_layers,))
        for at in range(frozen_layers)
    )
    frozen = (FrozenComponent(name="frozen", local_batch_sizes=(local,), layers=encoder),) if frozen_share else ()
    return Profile(
        source=f"equal layers, frozen share {frozen_share}",
        backbones=(Backbone(name="backbone", local_batch_sizes=(local,), layers=backbone),),
        frozen=frozen,
        p2p=Link(bandwidth_bytes_per_s=1e15),
    )
