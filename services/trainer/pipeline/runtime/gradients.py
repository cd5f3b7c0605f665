"""Sum gradients of a stage over its replicas, while other work goes on."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn


class GradientSum:
    """The all-reduce of one stage's gradients, once an iteration (eq. 4 of DiffusionPipe)."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], group: dist.ProcessGroup | None, ranks: int) -> None:
        """Sum over `ranks` ranks in `group`; None: this rank alone holds the stage."""
        self._parameters, self._group, self.ranks = list(parameters.values()), group, ranks
        self.waited_s = 0.0
        self._summed: list[tuple[dist.Work, torch.Tensor, list[nn.Parameter]]] = []

    def begin(self) -> None:
        """Start the sums; a parameter without a gradient counts as zeros, since another replica may have one."""
        if self._group is None:
            return
        by_type: dict[torch.dtype, list[nn.Parameter]] = {}
        for parameter in self._parameters:
            by_type.setdefault(parameter.dtype, []).append(parameter)
        for parameters in by_type.values():
            gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
            flat = torch.cat([one.reshape(-1) for one in gradients])
            work = dist.all_reduce(flat, group=self._group, async_op=True)
            assert work is not None, "this rank is in the group"
            self._summed.append((work, flat, parameters))

    def finish(self) -> None:
        """Wait for the sums and write them into the gradients."""
        for work, flat, parameters in self._summed:
            begun = time.perf_counter()
            work.wait()
            self.waited_s += time.perf_counter() - begun
            sums = torch.split(flat, [one.numel() for one in parameters])
            for parameter, total in zip(parameters, sums, strict=True):
                parameter.grad = total.view_as(parameter)
        self._summed.clear()


@contextmanager
def earlier_gradients(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Set the gradients aside that parameters have already, and add them at the end: only this iteration's are summed
    over replicas."""
    before = [(one, one.grad) for one in parameters if one.grad is not None]
    for parameter, _ in before:
        parameter.grad = None
    yield
    for parameter, gradient in before:
        parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
