"""Offload of a model's unused components: kept on the device, in host memory, or moved layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

HOST = torch.device("cpu")

Parts = Mapping[str, Sequence[torch.nn.Module]]
"""Modules that are used together: `text` (every text encoder), `denoiser`, `vae`."""


class Residence:
    """Move the part that is about to run to the device, as `settings.offload` says.

    none:       every part stays on the device.
    model:      one part at a time is on the device; the others stay in host memory. The denoiser waits while the
                prompt of a new request is encoded, so use this if the device cannot hold both.
    sequential: text encoders and denoiser run layer by layer, each layer on the device only while it runs. The VAE
                moves as a whole. This needs the least memory and is the slowest.
    Results do not change: the same weights compute in the same dtype.
    """

    def __init__(self, parts: Parts, device: torch.device, offload: str) -> None:
        self._parts = parts
        self._device = device
        self._offload = offload
        self.here: str = ""
        """The part that is on the device, with `offload=model`."""
        if offload == "none":
            _move(parts, list(parts), device)
        if offload == "sequential":
            for name in ("text", "denoiser"):
                for module in parts[name]:
                    by_layers(module, device)

    def bring(self, name: str) -> None:
        """Move `name` to the device before it runs; cheap when it is there already."""
        if self._offload == "none" or name == self.here:
            return
        whole = [part for part in self._parts if self._offload == "model" or part == "vae"]
        _move(self._parts, [part for part in whole if part == self.here], HOST)
        _move(self._parts, [part for part in whole if part == name], self._device)
        self.here = name


def _move(parts: Parts, names: Sequence[str], device: torch.device) -> None:
    with torch.inference_mode(False):  # a weight moved in inference mode could not be moved outside of it later
        for module in (module for name in names for module in parts[name]):
            module.to(device)


def by_layers(module: torch.nn.Module, device: torch.device) -> None:
    """Hook every layer (a module without children), so that its weights are on `device` only while it runs.

    Tensors of no layer (position tables, scales: small) stay on the device. Weights do not change, so nothing is copied
    back: after a layer ran, its parameters refer to the copy in host memory again.
    """
    waiting: dict[Tensor, Tensor] = {}
    for part in module.modules():
        for tensor in _own(part):
            if any(part.children()):
                tensor.data = tensor.data.to(device)
            elif tensor not in waiting:  # two layers may share one tensor
                waiting[tensor] = tensor.data.pin_memory() if device.type == "cuda" else tensor.data
    for layer in module.modules():
        if (own := _own(layer)) and not any(layer.children()):
            _hook(layer, {tensor: waiting[tensor] for tensor in own}, device)


def _own(part: torch.nn.Module) -> list[Tensor]:
    """Return the parameters and buffers of the module itself, without its children's."""
    return [*part.parameters(recurse=False), *part.buffers(recurse=False)]


def _hook(layer: torch.nn.Module, waiting: Mapping[Tensor, Tensor], device: torch.device) -> None:
    def come(*_: Any) -> None:
        with torch.inference_mode(False):
            for tensor, host in waiting.items():
                tensor.data = host.to(device, non_blocking=True)

    def go(*_: Any) -> None:
        with torch.inference_mode(False):
            for tensor, host in waiting.items():
                tensor.data = placeholder(host)

    layer.register_forward_pre_hook(come)
    layer.register_forward_hook(go)
    go()


def placeholder(host: Tensor) -> Tensor:
    """Return the tensor that stands for a weight that is off the device: the copy in host memory itself."""
    return host
