"""Measure the layers of a real model on a device: the planner's profile (DiffusionPipe §3.1, step 1)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import nn

from services.trainer.pipeline.costs.profile import Backbone, FrozenComponent, FrozenLayer, TrainableLayer
from services.trainer.pipeline.runtime.splitting.chain import Chain, Layer, State

Inputs = Callable[[int], State]
"""Number of samples → the inputs of a chain, on its device."""
REPEATS = 3


@dataclass
class _Measured:
    """Measurements of one layer at one local batch size; seconds of each repeat."""

    forward_s: list[float] = field(default_factory=list)
    backward_s: list[float] = field(default_factory=list)
    sent_bytes: float = 0.0
    returned_bytes: float = 0.0
    kept_bytes: float = 0.0


class Stopwatch:
    """Marks in the stream of a device: CUDA events, or the clock of the processor."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[Any] = []

    def mark(self) -> None:
        if self._device.type == "cuda":
            event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Wait for the device and return the seconds between the marks; clear them."""
        marks, self._marks = self._marks, []
        if self._device.type != "cuda":
            return [after - before for before, after in itertools.pairwise(marks)]
        torch.cuda.synchronize(self._device)
        return [before.elapsed_time(after) / 1000 for before, after in itertools.pairwise(marks)]


def measured_backbone(
    chain: Chain,
    inputs: Inputs,
    sizes: Sequence[int],
    *,
    repeats: int = REPEATS,
    autocast: torch.autocast | None = None,
) -> Backbone:
    """Measure forward and backward of each layer at each local batch size, after one pass that does not count.

    A layer's time includes the launch of its kernels. Seconds are medians over the repeats; bytes are those of the
    largest size, per sample.
    """
    found = [_passes(chain, inputs, size, repeats, autocast, train=True) for size in sizes]
    layers = []
    for at, layer in enumerate(chain.layers):
        largest = found[-1][at]
        layers.append(
            TrainableLayer(
                name=layer.name,
                forward_s=tuple(median(one[at].forward_s) for one in found),
                backward_s=tuple(median(one[at].backward_s) for one in found),
                output_bytes_per_sample=largest.sent_bytes / sizes[-1],
                output_gradient_bytes_per_sample=largest.returned_bytes / sizes[-1],
                gradient_bytes=_bytes(one for one in layer.parameters().values() if one.requires_grad),
                parameter_bytes=_bytes(layer.parameters().values()),
                activation_bytes_per_sample=largest.kept_bytes / sizes[-1],
            )
        )
    return Backbone(name=chain.name, local_batch_sizes=tuple(sizes), layers=tuple(layers))


def measured_component(
    chain: Chain,
    inputs: Inputs,
    sizes: Sequence[int],
    *,
    after: Sequence[str] = (),
    repeats: int = REPEATS,
    autocast: torch.autocast | None = None,
) -> FrozenComponent:
    """Measure a frozen component, forward only; `after` names the components whose outputs it reads."""
    found = [_passes(chain, inputs, size, repeats, autocast, train=False) for size in sizes]
    layers = tuple(
        FrozenLayer(
            name=layer.name,
            forward_s=tuple(median(one[at].forward_s) for one in found),
            output_bytes_per_sample=found[-1][at].sent_bytes / sizes[-1],
            parameter_bytes=_bytes(layer.parameters().values()),
        )
        for at, layer in enumerate(chain.layers)
    )
    return FrozenComponent(name=chain.name, local_batch_sizes=tuple(sizes), layers=layers, after=tuple(after))


def _passes(
    chain: Chain, inputs: Inputs, size: int, repeats: int, autocast: torch.autocast | None, *, train: bool
) -> list[_Measured]:
    """Run the chain layer by layer, each layer's backward pass right after its forward pass: one layer's activations
    are in memory at a time. The first of 1 + repeats passes warms up and counts bytes."""
    found = [_Measured() for _ in chain.layers]
    given = inputs(size)
    watch = Stopwatch(next(iter(given.values())).device)
    for number in range(1 + repeats):
        state = dict(given)
        for at, layer in enumerate(chain.layers):
            kept: dict[int, int] = {}
            read = {name: _leaf(state[name], train and name not in given) for name in layer.reads}
            counting = _count(layer, kept) if train and not number else nullcontext()
            with torch.set_grad_enabled(train), counting, autocast or nullcontext():
                watch.mark()
                made = dict(layer.run(read))
                watch.mark()
            if train and (roots := [one for one in unique(made) if one.requires_grad]):
                gradients = [torch.ones_like(one) for one in roots]
                watch.mark()
                torch.autograd.backward(roots, gradients)
                watch.mark()
            plain = {id(one): one.detach().requires_grad_(one.requires_grad) for one in unique(made)}
            state.update({name: plain[id(one)] for name, one in made.items()})
            for parameter in layer.parameters().values():
                parameter.grad = None
            taken = watch.seconds()
            if number:
                found[at].forward_s.append(taken[0])
                found[at].backward_s.append(taken[-1] if len(taken) > 1 else 0.0)
                continue
            crossing = {name: state[name] for name in chain.crossing(at + 1)}
            found[at].sent_bytes = _bytes(unique(crossing))
            found[at].returned_bytes = _bytes(one for one in unique(crossing) if one.requires_grad)
            found[at].kept_bytes = float(sum(kept.values()))
    return found


def _leaf(tensor: torch.Tensor, train: bool) -> torch.Tensor:
    """Return a tensor without history; it gets a gradient if the tensor that was made had one."""
    return tensor.detach().requires_grad_(train and tensor.requires_grad)


def _count(layer: Layer, kept: dict[int, int]) -> torch.autograd.graph.saved_tensors_hooks:
    """Count the bytes that autograd saves for the backward pass, without the parameters and each storage once."""
    weights = {one.untyped_storage().data_ptr() for one in layer.parameters().values()}

    def save(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    return torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor)


def unique(state: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors of a state, each one once: a skip may be the hidden state itself."""
    return list({id(tensor): tensor for tensor in state.values()}.values())


def _bytes(tensors: Any) -> float:
    return float(sum(tensor.numel() * tensor.element_size() for tensor in tensors))


def frozen_module(module: nn.Module) -> nn.Module:
    """Return a module in evaluation mode whose parameters require no gradient."""
    return module.requires_grad_(False).eval()
