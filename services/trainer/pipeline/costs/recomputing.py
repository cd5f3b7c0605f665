"""A profile with gradient checkpointing, from one without: less memory, and a second forward pass of each layer."""

from __future__ import annotations

from services.trainer.pipeline.costs.profile import Backbone, Profile, TrainableLayer


def recomputed(profile: Profile) -> Profile:
    """Return the profile of a runtime that keeps the inputs of layers only, and runs them again to go back.

    A layer keeps what crosses the cut before it, and the first one as much as it sends, but no more than it kept. The
    activations of the one layer that runs again are not counted, as little as the work space of kernels.
    """
    return profile.model_copy(update={"backbones": tuple(map(_recomputed, profile.backbones))})


def _recomputed(backbone: Backbone) -> Backbone:
    before = (backbone.layers[0], *backbone.layers[:-1])
    layers = tuple(_layer(one, read) for one, read in zip(backbone.layers, before, strict=True))
    return backbone.model_copy(update={"layers": layers})


def _layer(layer: TrainableLayer, before: TrainableLayer) -> TrainableLayer:
    backward = tuple(forward + back for forward, back in zip(layer.forward_s, layer.backward_s, strict=True))
    kept = min(layer.activation_bytes_per_sample, before.output_bytes_per_sample)
    return layer.model_copy(update={"backward_s": backward, "activation_bytes_per_sample": kept})
