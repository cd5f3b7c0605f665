"""Data-parallel training by the same profile, as formulas: DDP and FSDP (ZeRO-3)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from services.trainer.pipeline.costs.profile import Backbone, Profile
from services.trainer.pipeline.schedule.memory import trained_bytes
from services.trainer.pipeline.settings import PlanSettings

DDP_ASSUMES = "All-reduce overlaps with the whole backward pass (eqs. 5, 6); what is longer prolongs the iteration."
FSDP_ASSUMES = (
    "Each all-gather and reduce-scatter takes half an all-reduce. One all-gather comes before each forward and "
    "backward pass, one reduce-scatter after the backward pass; all of them overlap with the passes of the backbone."
)


@dataclass(frozen=True)
class DataParallel:
    """The predicted iteration of data-parallel training."""

    name: str
    local_batch: int
    frozen_s: float
    computed_s: float
    """Forward and backward passes of the backbones."""
    exposed_s: float
    """Communication that computation does not hide."""
    memory_bytes: float

    @property
    def seconds(self) -> float:
        return self.frozen_s + self.computed_s + self.exposed_s


def ddp(profile: Profile, settings: PlanSettings, *, overlap: bool = True) -> DataParallel:
    """Return DDP's iteration: every device has the whole model; several backbones are trained one after the other.

    overlap: whether the backward pass hides gradients that are summed meanwhile.
    """
    local = math.ceil(settings.batch / settings.devices)
    exposed = computed = 0.0
    for backbone in profile.backbones:
        forward, backward = _passes(backbone, local)
        gradients = sum(layer.gradient_bytes for layer in backbone.layers)
        computed += forward * (1 + settings.self_conditioning) + backward
        exposed += max(0.0, profile.all_reduce_s(gradients, settings.devices) - overlap * backward)
    kept = sum(trained_bytes(profile, one, range(len(one.layers))) for one in profile.backbones)
    memory = profile.frozen_parameter_bytes + kept + _activations(profile, local)
    return DataParallel("DDP", local, profile.frozen_s(local), computed, exposed, memory)


def fsdp(profile: Profile, settings: PlanSettings) -> DataParallel:
    """Return FSDP's iteration: weights, gradients and optimizer are divided over all devices."""
    local = math.ceil(settings.batch / settings.devices)
    exposed = computed = 0.0
    for backbone in profile.backbones:
        forward, backward = _passes(backbone, local)
        gradients = sum(layer.gradient_bytes for layer in backbone.layers)
        passes = forward * (1 + settings.self_conditioning) + backward
        halves = 3 + settings.self_conditioning
        computed += passes
        exposed += max(0.0, halves / 2 * profile.all_reduce_s(gradients, settings.devices) - passes)
    kept = sum(trained_bytes(profile, one, range(len(one.layers))) for one in profile.backbones) / settings.devices
    largest = max(layer.parameter_bytes + layer.gradient_bytes for one in profile.backbones for layer in one.layers)
    memory = profile.frozen_parameter_bytes + kept + largest + _activations(profile, local)
    return DataParallel("FSDP", local, profile.frozen_s(local), computed, exposed, memory)


def _passes(backbone: Backbone, local: int) -> tuple[float, float]:
    """Return the times of all forward and of all backward passes."""
    layers = range(len(backbone.layers))
    return sum(backbone.forward_s(at, local) for at in layers), sum(backbone.backward_s(at, local) for at in layers)


def _activations(profile: Profile, local: int) -> float:
    """Return the activations of the largest backbone; the others are trained before or after it."""
    return max(local * sum(layer.activation_bytes_per_sample for layer in one.layers) for one in profile.backbones)
