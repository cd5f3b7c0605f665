"""Where a model's components wait while unused: on the device, in the machine's memory, or layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

HOST = torch.device("cpu")

Parts = Mapping[str, Sequence[torch.nn.Module]]
"""Modules that are used together: `text` (every text encoder), `denoiser`, `vae`."""


class Residence:
    """Brings the part that is about to run to the device, as `settings.offload` says.

    none:       everything stays on the device.
    model:      one part is on the device at a time; the others wait in the machine's memory. A request that joins makes
                the denoiser wait while its prompt is encoded, so this is for devices that cannot hold both.
    sequential: text encoders and denoiser run layer by layer, each layer on the device while it runs; the VAE comes as
                a whole and goes. Least memory, slowest.
    Results do not change: the same weights compute in the same dtype.
    """

    def __init__(self, parts: Parts, device: torch.device, offload: str) -> None:
        self._parts = parts
        self._device = device
        self._offload = offload
        self.here: str = ""
        """The part on the device, where only one is."""
        if offload == "none":
            _move(parts, list(parts), device)
        if offload == "sequential":
            for name in ("text", "denoiser"):
                for module in parts[name]:
                    by_layers(module, device)

    def bring(self, name: str) -> None:
        """Before `name` runs; cheap when it is there already."""
        if self._offload == "none" or name == self.here:
            return
        whole = [part for part in self._parts if self._offload == "model" or part == "vae"]
        _move(self._parts, [part for part in whole if part == self.here], HOST)
        _move(self._parts, [part for part in whole if part == name], self._device)
        self.here = name


def _move(parts: Parts, names: Sequence[str], device: torch.device) -> None:
    with torch.inference_mode(False):  # a weight moved inside it could never be moved again outside
        for module in (module for name in names for module in parts[name]):
            module.to(device)


def by_layers(module: torch.nn.Module, device: torch.device) -> None:
    """Hooks every layer (a module without children) so that its weights are on `device` while it runs and no longer.

    What belongs to no layer (tables of positions, scales: small) goes to the device for good. Weights do not change, so
    nothing is copied back: after a layer ran, its parameters name the copy in the machine's memory again.
    """
    waiting: dict[Tensor, Tensor] = {}
    for part in module.modules():
        for tensor in _own(part):
            if any(part.children()):
                tensor.data = tensor.data.to(device)
            elif tensor not in waiting:  # two layers may share one
                waiting[tensor] = tensor.data.pin_memory() if device.type == "cuda" else tensor.data
    for layer in module.modules():
        if (own := _own(layer)) and not any(layer.children()):
            _hook(layer, {tensor: waiting[tensor] for tensor in own}, device)


def _own(part: torch.nn.Module) -> list[Tensor]:
    """Parameters and buffers of the module itself, without its children's."""
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
    """What stands for a weight that is away: the copy in the machine's memory itself."""
    return host
