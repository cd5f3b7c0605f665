"""Memory of each device, estimated from the profile: weights, gradients, optimizer, activations."""

from __future__ import annotations

from collections.abc import Sequence

from services.trainer.pipeline.costs.profile import Backbone, Profile
from services.trainer.pipeline.cuts.partition import Partition
from services.trainer.pipeline.schedule.schedules import Action, Schedule
from services.trainer.pipeline.schedule.simulation import peak_bytes


def trained_bytes(profile: Profile, backbone: Backbone, layers: Sequence[int]) -> float:
    """Return what stays for layers that are trained: weights, gradients and the state of the optimizer."""
    weights = sum(backbone.layers[at].parameter_bytes for at in layers)
    gradients = sum(backbone.layers[at].gradient_bytes for at in layers)
    return weights * (1 + profile.optimizer_bytes_per_parameter_byte) + gradients


def place_bytes(
    profile: Profile, backbones: Sequence[Backbone], cut: Partition, micro_batch: float, schedule: Schedule
) -> tuple[float, ...]:
    """Return the bytes of a device at each place in the chain.

    Every device has the weights of all frozen components, since they run on all idle devices. Activations are those
    that the schedule holds at its peak. Work space of kernels and fragmentation are not counted.
    """
    kept = [profile.frozen_parameter_bytes] * schedule.stages
    for pipeline, (backbone, stages) in enumerate(zip(backbones, cut.stages, strict=True)):
        for stage, layers in enumerate(stages):
            kept[cut.place_of(pipeline, stage)] += trained_bytes(profile, backbone, layers)

    def held(action: Action) -> float:
        replicas = cut.replicas[cut.place_of(action.pipeline, action.stage)]
        layers = backbones[action.pipeline].layers
        at = cut.stages[action.pipeline][action.stage]
        return micro_batch / replicas * sum(layers[one].activation_bytes_per_sample for one in at)

    return tuple(one + peak for one, peak in zip(kept, peak_bytes(schedule, held), strict=True))
