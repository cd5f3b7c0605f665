"""Forward and backward passes of one stage, micro-batch by micro-batch."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from services.trainer.pipeline.runtime.parcels import first_names
from services.trainer.pipeline.runtime.parts import Fed, TrainedPart
from services.trainer.pipeline.runtime.splitting.chain import State, trainable


@dataclass
class _Held:
    """Tensors of a micro-batch between its forward and its backward pass."""

    received: State
    made: State


class Stage:
    """Consecutive layers of one backbone on this device."""

    def __init__(
        self, part: TrainedPart, layers: range, *, autocast: torch.autocast | None = None, recompute: bool = False
    ) -> None:
        self.part, self.layers = part, layers
        self.first, self.last = layers.start == 0, layers.stop == len(part.chain.layers)
        self._autocast, self._recompute = autocast, recompute
        self._held: dict[int, _Held] = {}
        self.losses: list[torch.Tensor] = []
        """Losses of this iteration's micro-batches, without gradients; on the last stage only."""

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Return the trainable parameters by their names in the whole model."""
        return trainable([self.part.chain.layers[at] for at in self.layers])

    def condition(self, received: State, fed: Fed) -> State:
        """Run the additional pass of self-conditioning; return what the next stage, or the first one, reads."""
        with torch.no_grad():
            made = self._run(received, fed, None)
            if not self.last:
                return made
            assert self.part.estimate is not None, "checked when the executor was made"
            return {"estimate": self.part.estimate(made["prediction"], fed.target)}

    def forward(
        self, number: int, received: State, fed: Fed, estimate: torch.Tensor | None, *, train: bool = True
    ) -> State:
        """Run the forward pass of a micro-batch; return what the next stage reads, nothing on the last one."""
        with torch.set_grad_enabled(train):
            made = self._run(received, fed, estimate)
            if self.last:
                loss = self.part.loss(made["prediction"], fed.target)
                self.losses.append(loss.detach())
                made = {"loss": loss}
        if train:
            self._held[number] = _Held(received, made)
        return {} if self.last else made

    def backward(self, number: int, gradients: Mapping[str, torch.Tensor], loss_scale: float) -> State:
        """Run the backward pass of a micro-batch; return the gradients that the stage before reads."""
        held = self._held.pop(number)
        if self.last:
            loss = held.made["loss"]
            if loss.requires_grad:
                torch.autograd.backward(loss * loss_scale)
        elif roots := first_names(held.made):
            torch.autograd.backward(list(roots.values()), [gradients[name] for name in roots])
        leaves = first_names(held.received)
        return {name: torch.zeros_like(one) if one.grad is None else one.grad for name, one in leaves.items()}

    def _run(self, received: State, fed: Fed, estimate: torch.Tensor | None) -> State:
        chain = self.part.chain
        state = dict(received)
        state.update((name, fed.state[name]) for name in chain.read_by(self.layers) if name != "estimate")
        if self.first and self.part.self_conditioned:
            state["estimate"] = torch.zeros_like(fed.state["sample"]) if estimate is None else estimate
        with self._autocast or nullcontext():
            return chain.run(self.layers, state, recompute=self._recompute and torch.is_grad_enabled())
