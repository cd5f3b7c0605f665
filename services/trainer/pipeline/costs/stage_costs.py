"""What a stage of consecutive layers costs: eqs. 3–6 and 17 of DiffusionPipe, for all pairs of cuts at once."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.trainer.pipeline.costs.profile import Backbone, Profile

CRITERIA = 3
"""T_0, T_0 with self-conditioning, and the gap T_S − T_C: what a partition minimises the largest of, over stages."""


@dataclass(frozen=True)
class Conditions:
    """What a partition is planned for."""

    micro_batch: float
    """B: samples of one micro-batch, over all replicas of a stage."""
    groups: int = 1
    """Pipeline groups that train data-parallel; a stage's gradients are summed over r · groups devices."""
    cluster: int = 0
    """Devices of the cluster. Stages sum gradients at about the same time, over links that all of them share, so the
    speed is that of an all-reduce over the whole cluster (eq. 4 has one R_ar); 0: over r · groups devices."""
    self_conditioning: float = 0.0
    """p: probability that an iteration has the second forward pass (§4.3)."""
    transfer_factor: float = 1.0
    """2 where pipelines of both directions share the links (§4.2)."""


def stage_costs(profile: Profile, backbone: Backbone, conditions: Conditions, replicas: int) -> NDArray[np.float64]:
    """Return the costs of every stage on `replicas` devices, an array (criteria, n + 1, n + 1).

    Element [:, l, L] is for the stage of the layers l … L − 1; infinite where that is no stage. Eq. 3 charges a stage
    with the transfer over the cut before it. A gap below 0 counts as 0: a synchronisation that ends before the
    computation does not shorten the pipeline. Where one device holds a stage, T_S is 0.
    """
    local = conditions.micro_batch / replicas
    layers = range(len(backbone.layers))
    forward = _sums([backbone.forward_s(at, local) for at in layers])
    backward = _sums([backbone.backward_s(at, local) for at in layers])
    gradients = _sums([layer.gradient_bytes for layer in backbone.layers])
    sent, returned = cut_bytes(backbone, local)
    link, factor = profile.p2p, conditions.transfer_factor
    once, twice = (
        np.where(
            np.arange(len(sent)) > 0,
            factor * ((passes * sent + returned) / link.bandwidth_bytes_per_s + (passes + 1) * link.latency_s),
            0.0,
        )
        for passes in (1, 2)
    )
    synced = np.vectorize(lambda one: sync_s(profile, conditions, one, replicas), otypes=[float])(gradients)
    costs = np.stack(
        (
            np.maximum(forward + backward, once[:, None]),
            np.maximum(2 * forward + backward, twice[:, None]),
            np.maximum(synced - backward, 0.0),
        )
    )
    stages = np.triu(np.ones(forward.shape, dtype=bool), k=1)
    return np.where(stages, costs, np.inf)


def sync_s(profile: Profile, conditions: Conditions, gradient_bytes: float, replicas: int) -> float:
    """Return T_S of eq. 4: the all-reduce of a stage's gradients; 0 where one device holds the stage."""
    devices = replicas * conditions.groups
    return 0.0 if devices < 2 else profile.all_reduce_s(gradient_bytes, max(devices, conditions.cluster))


def mirrored(costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the costs by layers counted from the end, for the pipeline from the last device to the first."""
    return np.ascontiguousarray(costs[:, ::-1, ::-1].transpose(0, 2, 1))


def feedback_s(profile: Profile, backbone: Backbone, samples: float) -> float:
    """Return T_F: the transfer of the last layer's output to the first stage (§4.3).

    T^max takes the whole micro-batch B, as printed: an upper bound, as if the replicas shared one link. The simulator
    takes B/r, since each replica sends its own part.
    """
    return profile.p2p.seconds(backbone.layers[-1].output_bytes_per_sample * samples)


def cut_bytes(backbone: Backbone, samples: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the bytes sent forward and back over the cut before each layer; 0 before the first."""
    forward = [0.0, *(layer.output_bytes_per_sample * samples for layer in backbone.layers)]
    back = [0.0, *(layer.returned_bytes_per_sample * samples for layer in backbone.layers)]
    return np.array(forward), np.array(back)


def merged(name: str, backbones: tuple[Backbone, ...], samples: float) -> tuple[Backbone, list[tuple[int, int]]]:
    """Return backbones of one direction as one chain, and for each layer (backbone, layer) where it came from.

    More than two backbones form two groups, whose stages are combined into larger ones (§4.2). The paper does not say
    how; here the layers are ordered by the share of their own backbone's work before their middle, so that one cut
    divides each backbone at nearly the same share. A cut sends what the cuts of all backbones send.
    """
    if len(backbones) == 1:
        return backbones[0], [(0, at) for at in range(len(backbones[0].layers))]
    places: list[tuple[float, int, int]] = []
    for number, backbone in enumerate(backbones):
        work = [
            backbone.forward_s(at, samples) + backbone.backward_s(at, samples) for at in range(len(backbone.layers))
        ]
        done = list(itertools.accumulate(work, initial=0.0))
        places += [((done[at] + done[at + 1]) / 2 / (done[-1] or 1.0), number, at) for at in range(len(work))]
    order = [(number, at) for _, number, at in sorted(places)]
    sizes = sorted({size for backbone in backbones for size in backbone.local_batch_sizes})
    layers = []
    cut = [(0.0, 0.0)] * len(backbones)
    for number, at in order:
        backbone, layer = backbones[number], backbones[number].layers[at]
        last = at == len(backbone.layers) - 1
        cut[number] = (0.0, 0.0) if last else (layer.output_bytes_per_sample, layer.returned_bytes_per_sample)
        layers.append(
            layer.model_copy(
                update={
                    "name": f"{backbone.name}: {layer.name}",
                    "forward_s": tuple(backbone.forward_s(at, size) for size in sizes),
                    "backward_s": tuple(backbone.backward_s(at, size) for size in sizes),
                    "output_bytes_per_sample": sum(sent for sent, _ in cut),
                    "output_gradient_bytes_per_sample": sum(back for _, back in cut),
                }
            )
        )
    return Backbone(name=name, local_batch_sizes=tuple(sizes), layers=tuple(layers)), order


def _sums(values: list[float]) -> NDArray[np.float64]:
    """Return the sums of values l … L − 1 for all l and L."""
    sums = np.array([0.0, *itertools.accumulate(values)])
    return sums[None, :] - sums[:, None]
