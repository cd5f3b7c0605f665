"""Updates of the weights: AdamW, its learning rate, clipping, the scale of fp16 losses, and the averaged weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from services.trainer.finetuning.settings import RunSettings
from services.trainer.training.runs import Average


def rate_at(iteration: int, settings: RunSettings) -> float:
    """Return the learning rate of an iteration, counted from 0: a linear warm-up, then constant or half a cosine."""
    rate, warmup = settings.rate, settings.warmup
    if iteration < warmup:
        return rate * (iteration + 1) / warmup
    if settings.optimizer.schedule == "constant":
        return rate
    done = (iteration - warmup) / max(settings.iterations - warmup, 1)
    return rate * (1 + math.cos(math.pi * min(done, 1.0))) / 2


class LossScale:
    """Scale of losses in fp16, whose small gradients would vanish: halved at an overflow, doubled after a while.

    Micikevicius et al. 2018 (Mixed Precision Training), §3.2. The decision is the same on every rank, because the norm
    of the gradients is.
    """

    GROWS_AFTER = 2000

    def __init__(self, used: bool) -> None:
        self.scale, self._good, self._used = (65_536.0 if used else 1.0), 0, used

    def accept(self, gradient_norm: float) -> bool:
        """Return whether an update with this norm may be made, and adapt the scale."""
        finite = math.isfinite(gradient_norm)
        if self._used:
            self._good = self._good + 1 if finite else 0
            if not finite:
                self.scale = max(self.scale / 2, 1.0)
            elif self._good == self.GROWS_AFTER:
                self.scale, self._good = self.scale * 2, 0
        return finite

    def state(self) -> dict[str, float]:
        return {"scale": self.scale, "good": self._good, "used": self._used}

    def load(self, state: Mapping[str, float]) -> None:
        """Take over the scale of a run in fp16; that of another precision is no scale to begin with."""
        if self._used and state.get("used", True):
            self.scale, self._good = float(state["scale"]), int(state["good"])


class Updates:
    """Optimizer and averaged weights of the parameters that one rank holds."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], settings: RunSettings, fp16: bool) -> None:
        """Prepare AdamW (Loshchilov and Hutter 2019) for parameters by name."""
        self.parameters, self._settings = parameters, settings
        own = settings.optimizer
        self.optimizer = torch.optim.AdamW(
            [{"params": list(parameters.values())}],  # a rank without trainable layers has none
            lr=settings.rate,
            betas=own.betas,
            weight_decay=own.weight_decay,
        )
        self.loss_scale = LossScale(fp16)
        self.skipped = 0
        """Updates in a row that were left out because a gradient was not finite."""
        weights = nn.ParameterList(parameters.values())
        self.average = Average([weights], decay=own.ema_decay) if own.ema_decay else None

    def update(self, iteration: int, gradient_norm: float) -> bool:
        """Take a step with the gradients of an iteration, counted from 0, and drop them.

        gradient_norm: of the scaled gradients over all ranks. Returns False for a step that was left out because it is
        not finite.
        """
        scale = self.loss_scale.scale
        accepted = self.loss_scale.accept(gradient_norm)
        if accepted:
            self.skipped = 0
            for group in self.optimizer.param_groups:
                group["lr"] = rate_at(iteration, self._settings)
            self._clip(gradient_norm, scale)
            self.optimizer.step()
            if self.average is not None:
                self.average.update()
        else:
            self.skipped += 1
        self.optimizer.zero_grad()
        return accepted

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Have the averaged weights in the parameters while the block runs."""
        if self.average is None:
            yield
            return
        self.average.swap()
        try:
            yield
        finally:
            self.average.swap()

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return everything that a checkpoint keeps, by names that do not depend on the rank; loading writes into it.

        Before the first step AdamW's state is zeros.
        """
        found = {f"weights.{name}": value.data for name, value in self.parameters.items()}
        if self.average is not None:
            names = zip(self.parameters, self.average.tensors, strict=True)
            found |= {f"average.{name}": value for name, value in names}
        for name, value in self.parameters.items():
            state = self._state_of(value)
            found |= {f"optimizer.{name}.{key}": state[key] for key in ("step", "exp_avg", "exp_avg_sq")}
        return found

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps beside the tensors."""
        averaged = 0 if self.average is None else self.average.updates
        return {"loss_scale": self.loss_scale.state(), "average_updates": averaged}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        self.loss_scale.load(state["loss_scale"])
        if self.average is not None:
            self.average.updates = int(state["average_updates"])

    def _state_of(self, parameter: nn.Parameter) -> dict[str, torch.Tensor]:
        """Return AdamW's state of a parameter; zeros, as AdamW makes them, before its first step."""
        state = self.optimizer.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state

    def _clip(self, gradient_norm: float, scale: float) -> None:
        """Undo the loss scale, and shorten the gradients to the largest norm (Pascanu et al. 2013)."""
        most = self._settings.optimizer.clip_norm
        norm = gradient_norm / scale
        factor = (min(1.0, most / (norm + 1e-6)) if most else 1.0) / scale
        if factor != 1.0:
            for parameter in self.parameters.values():
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
