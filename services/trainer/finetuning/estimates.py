"""Estimates before a run starts: memory by what it is for, and time from a trial."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import nn

from services.trainer.finetuning.batches import Batch
from services.trainer.finetuning.settings import RunSettings
from services.trainer.finetuning.stepper import Stepper
from shared.models.memory import said


@dataclass(frozen=True)
class Estimate:
    """Predicted cost of a run on this rank."""

    weights_bytes: int
    """Weights of the denoiser and the frozen encoders."""
    training_bytes: int
    """Gradients, AdamW's two averages, and the averaged weights."""
    activations_bytes: int
    """Tensors that the trial kept for its backward pass."""
    iteration_s: float
    trained: int
    """Trainable parameters of this rank."""

    @property
    def bytes(self) -> int:
        return self.weights_bytes + self.training_bytes + self.activations_bytes

    def lines(self, settings: RunSettings, left: int) -> list[str]:
        """Return lines for users; `left` is the number of iterations to go."""
        seconds = timedelta(seconds=round(self.iteration_s * left))
        return [
            f"memory of a rank: about {said(self.bytes)}: weights {said(self.weights_bytes)}, gradients, optimizer and "
            f"average {said(self.training_bytes)}, activations {said(self.activations_bytes)}; "
            f"{self.trained:,} parameters are trained on it",
            f"time: about {seconds} for {left:,} iterations of {settings.batch} images, {self.iteration_s:.3g} s each, "
            "without samples and checkpoints",
        ]


def estimated(stepper: Stepper, batch: Batch, upcoming: Batch, modules: Mapping[str, Any], ema: bool) -> Estimate:
    """Run two trial iterations whose gradients are dropped, and return the estimate. All ranks call it.

    The first one warms up and counts memory; the second one is timed.
    """
    parameters = stepper.parameters()
    count = sum(value.numel() for value in parameters.values())
    size = sum(value.numel() * value.element_size() for value in parameters.values())
    with _kept_for_backward() as kept:
        stepper.step(batch, upcoming)
    began = time.monotonic()
    stepper.step(upcoming)
    seconds = time.monotonic() - began
    for value in parameters.values():
        value.grad = None
    weights = sum(_bytes(module) for module in modules.values())
    return Estimate(weights, size * (4 if ema else 3), kept.most, seconds, count)


def _bytes(module: Any) -> int:
    if not isinstance(module, nn.Module):
        return 0
    return sum(value.numel() * value.element_size() for value in module.parameters() if not value.is_meta)


class _Kept:
    """A tensor that autograd keeps, counted once for each storage until the backward pass drops it."""

    __slots__ = ("_counter", "_pointer", "tensor")

    def __init__(self, tensor: torch.Tensor, counter: _Counter) -> None:
        self.tensor, self._counter = tensor, counter
        self._pointer = counter.add(tensor.untyped_storage())

    def __del__(self) -> None:
        self._counter.remove(self._pointer)


class _Counter:
    """Bytes that are kept now, and the most that were kept at one time."""

    def __init__(self) -> None:
        self._users: dict[int, tuple[int, int]] = {}
        self._now = self.most = 0

    def add(self, storage: torch.UntypedStorage) -> int:
        pointer = storage.data_ptr()
        users, size = self._users.get(pointer, (0, storage.nbytes()))
        if not users:
            self._now += size
            self.most = max(self.most, self._now)
        self._users[pointer] = users + 1, size
        return pointer

    def remove(self, pointer: int) -> None:
        users, size = self._users[pointer]
        if users == 1:
            self._now -= size
            del self._users[pointer]
        else:
            self._users[pointer] = users - 1, size


@contextmanager
def _kept_for_backward() -> Iterator[_Counter]:
    """Count what autograd keeps for the backward pass, parameters left out."""
    counter = _Counter()

    def pack(tensor: torch.Tensor) -> torch.Tensor | _Kept:
        return tensor if isinstance(tensor, nn.Parameter) else _Kept(tensor, counter)

    def unpack(kept: torch.Tensor | _Kept) -> torch.Tensor:
        return kept.tensor if isinstance(kept, _Kept) else kept

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield counter
