"""Steppers run the iterations of the training loop: their interface, and the stepper of one process."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Protocol

import torch
from torch import nn

from services.trainer.finetuning.batches import Batch
from services.trainer.finetuning.loss import Noised, Objective, loss_sum

Conditions = Mapping[str, torch.Tensor]
"""Inputs of the denoiser that come from frozen encoders, (B, …) each, by the names of `Denoiser.forward`."""


class Stepper(Protocol):
    """Runs the forward and backward passes of an iteration, on one rank or together with the other ranks.

    The optimizer, the gradient clipping, the averaged weights and the checkpoints are the loop's. All ranks make the
    same calls in the same order, with the same batch: it describes the samples of all ranks and is read row by row.
    """

    def step(self, batch: Batch, upcoming: Batch | None = None, loss_scale: float = 1.0) -> float:
        """Add `loss_scale` times the gradients of the iteration's mean loss to the parameters; return this loss.

        The loss (unscaled) is the same on every rank. `upcoming` is the batch of the next iteration, or None where
        there is none: frozen encoders may run on it meanwhile (cross-iteration filling, DiffusionPipe §3.2).
        """
        ...

    def evaluate(self, batch: Batch) -> float:
        """Return the mean loss of a batch, the same on every rank; leaves gradients as they are."""
        ...

    def parameters(self) -> Mapping[str, nn.Parameter]:
        """Return the trainable parameters that this rank holds, by their names in the whole denoiser.

        The loop reads their gradients, and writes the parameters in place. Checkpoints save them by these names, so
        a run can go on with another number of ranks.
        """
        ...

    def gradient_norm(self) -> float:
        """Return the norm of all gradients over all ranks, each parameter counted once; the same on every rank."""
        ...

    def gather(self) -> None:
        """Write the trained weights of all ranks into the first rank's model, for samples and the export.

        All ranks call it.
        """
        ...


class Encoders(Protocol):
    """Frozen encoders of a checkpoint."""

    def encode(self, batch: Batch) -> tuple[torch.Tensor, Conditions]:
        """Return the scaled latents (B, C, h, w) float32 of a batch's images, and the conditions of its rows."""
        ...


class Denoiser(Protocol):
    """The trained part of a checkpoint."""

    @property
    def self_conditioned(self) -> bool:
        """Whether `denoise` takes an estimate."""
        ...

    def denoise(
        self, noisy: torch.Tensor, timesteps: torch.Tensor, conditions: Conditions, estimate: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the prediction (B, C, h, w) at noisy latents (B, C, h, w) and timesteps (B,).

        estimate: clean latents of an earlier pass, (B, C, h, w); zeros for the first; None: not self-conditioned.
        """
        ...

    def trainable(self) -> Mapping[str, nn.Parameter]:
        """Return the trainable parameters by name."""
        ...


class SingleProcess:
    """Stepper of one process: whole batches, or micro-batches whose gradients add up."""

    def __init__(
        self,
        denoiser: Denoiser,
        encoders: Encoders,
        objective: Objective,
        *,
        micro_batch: int = 0,
        autocast: torch.autocast | None = None,
    ) -> None:
        """Prepare passes of `micro_batch` rows (0: the whole batch); `autocast` surrounds the denoiser's passes."""
        self._denoiser, self._encoders, self._objective = denoiser, encoders, objective
        self._micro_batch, self._autocast = micro_batch, autocast

    def step(self, batch: Batch, upcoming: Batch | None = None, loss_scale: float = 1.0) -> float:
        total = 0.0
        for part in self._parts(batch):
            loss = self._loss(part)
            torch.autograd.backward(loss * loss_scale)
            total += loss.item()
        return total

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> float:
        return sum(self._loss(part).item() for part in self._parts(batch))

    def parameters(self) -> Mapping[str, nn.Parameter]:
        return self._denoiser.trainable()

    def gradient_norm(self) -> float:
        return norm_of(parameter.grad for parameter in self.parameters().values())

    def gather(self) -> None:
        """Do nothing: the model is here."""

    def _parts(self, batch: Batch) -> Iterable[Batch]:
        rows = self._micro_batch or len(batch)
        return [batch.part(start, start + rows) for start in range(0, len(batch), rows)]

    def _loss(self, part: Batch) -> torch.Tensor:
        """Return the share of some rows in the iteration's loss."""
        latents, conditions = self._encoders.encode(part)
        at = self._objective.noised(latents, [row.seed for row in part.rows])
        return loss_sum(self._predict(at, conditions, part.second_pass), at) / part.whole

    def _predict(self, at: Noised, conditions: Conditions, second_pass: bool) -> torch.Tensor:
        """Return the prediction; a self-conditioned one sees the estimate of a first pass without gradients.

        Chen et al. 2022 (Analog Bits), §2.3; DiffusionPipe §4.3. The other iterations see an estimate of zeros.
        """
        if not self._denoiser.self_conditioned:
            return self._pass(at, conditions, None)
        estimate = torch.zeros_like(at.noisy)
        if second_pass:
            with torch.no_grad():
                estimate = self._objective.estimate(self._pass(at, conditions, estimate), at)
        return self._pass(at, conditions, estimate)

    def _pass(self, at: Noised, conditions: Conditions, estimate: torch.Tensor | None) -> torch.Tensor:
        if self._autocast is None:
            return self._denoiser.denoise(at.noisy, at.timesteps, conditions, estimate)
        with self._autocast:
            return self._denoiser.denoise(at.noisy, at.timesteps, conditions, estimate)


def norm_of(gradients: Iterable[torch.Tensor | None]) -> float:
    """Return the 2-norm of all gradients together; 0 without any. The squares are summed in float32."""
    squares = [gradient.detach().float().square().sum() for gradient in gradients if gradient is not None]
    return math.sqrt(float(torch.stack(squares).sum())) if squares else 0.0
