"""Chains of layers: a model as consecutive functions over a flat dict of named tensors, which can be cut anywhere.

A layer reads some names and makes others. A cut sends the names that an earlier layer made and a later one reads: the
output of the layer before, and skips that pass through the stages between (relayed). Names that no layer makes are
inputs of the chain; every stage that reads them gets them from the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

State = dict[str, torch.Tensor]
"""Named tensors; the first dimension of each one counts samples."""
Run = Callable[[Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]]


@dataclass(frozen=True)
class Layer:
    """One layer: a function of named tensors, and the modules whose parameters it uses."""

    name: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    run: Run
    modules: Mapping[str, nn.Module] = field(default_factory=dict)
    """Prefix of the parameters' names in the whole model → module."""

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters of this layer by their names in the whole model."""
        return {
            f"{prefix}.{name}": parameter
            for prefix, module in self.modules.items()
            for name, parameter in module.named_parameters()
        }

    def named(self, prefix: str) -> Layer:
        """Return the layer with a prefix before its parameters' names."""
        return replace(self, modules={f"{prefix}.{name}": module for name, module in self.modules.items()})


@dataclass(frozen=True)
class Chain:
    """A model as consecutive layers."""

    name: str
    layers: tuple[Layer, ...]
    outputs: tuple[str, ...]
    """Names that the whole model returns."""

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Return the names that layers read and no earlier layer makes, in the order of their first reader."""
        made: set[str] = set()
        found: dict[str, None] = {}
        for layer in self.layers:
            found.update(dict.fromkeys(name for name in layer.reads if name not in made))
            made.update(layer.makes)
        return tuple(found)

    def crossing(self, cut: int) -> tuple[str, ...]:
        """Return what a cut before layer `cut` sends, in alphabetic order; after the last layer, the outputs."""
        return self._crossings[cut]

    @cached_property
    def _crossings(self) -> tuple[tuple[str, ...], ...]:
        needed, found = set(self.outputs), []
        for cut in range(len(self.layers), -1, -1):
            made = {name for layer in self.layers[:cut] for name in layer.makes}
            found.append(tuple(sorted(needed & made)))
            if cut:
                layer = self.layers[cut - 1]
                needed = (needed - set(layer.makes)) | set(layer.reads)
        return tuple(reversed(found))

    def maker(self, name: str, before: int) -> int | None:
        """Return the last layer before layer `before` that makes a name; None for an input of the chain."""
        return next((at for at in range(before - 1, -1, -1) if name in self.layers[at].makes), None)

    def read_by(self, layers: range) -> tuple[str, ...]:
        """Return the inputs of the chain that these layers read."""
        read = {name for at in layers for name in self.layers[at].reads}
        return tuple(name for name in self.inputs if name in read)

    def run(self, layers: range, state: Mapping[str, torch.Tensor], *, recompute: bool = False) -> State:
        """Run consecutive layers; `state` holds what crosses their first cut and the inputs that they read.

        Return what crosses the cut after the last one. Tensors that no later layer reads are released. recompute: the
        backward pass runs each layer's forward pass again, instead of keeping what it needs.
        """
        found = dict(state)
        for at in layers:
            layer = self.layers[at]
            read = {name: found[name] for name in layer.reads}
            made = checkpoint(layer.run, read, use_reentrant=False) if recompute else layer.run(read)
            found.update(made)
            kept = {*self.crossing(at + 1), *self.inputs}
            found = {name: tensor for name, tensor in found.items() if name in kept}
        return {name: found[name] for name in self.crossing(layers.stop)}

    def __call__(self, state: Mapping[str, torch.Tensor]) -> State:
        """Run the whole model."""
        return self.run(range(len(self.layers)), state)


def trainable(layers: Sequence[Layer]) -> dict[str, nn.Parameter]:
    """Return the trainable parameters of some layers by their names in the whole model."""
    found = {name: parameter for layer in layers for name, parameter in layer.parameters().items()}
    return {name: parameter for name, parameter in found.items() if parameter.requires_grad}
