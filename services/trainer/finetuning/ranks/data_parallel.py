"""Stepper of several ranks that each hold all weights and train on a part of every batch (torch's DDP)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from services.trainer.finetuning.batches import Batch
from services.trainer.finetuning.loss import Objective
from services.trainer.finetuning.model.denoiser import CheckpointDenoiser
from services.trainer.finetuning.ranks.group import Place
from services.trainer.finetuning.stepper import Conditions, Encoders, SingleProcess


class _Synchronised:
    """A denoiser whose passes with gradients go through DDP, which sums gradients while the backward pass runs."""

    def __init__(self, denoiser: CheckpointDenoiser) -> None:
        self._denoiser = denoiser
        self.ddp = DistributedDataParallel(denoiser)

    @property
    def self_conditioned(self) -> bool:
        return self._denoiser.self_conditioned

    def denoise(
        self, noisy: torch.Tensor, timesteps: torch.Tensor, conditions: Conditions, estimate: torch.Tensor | None
    ) -> torch.Tensor:
        run = self.ddp if torch.is_grad_enabled() else self._denoiser
        found: torch.Tensor = run(noisy, timesteps, dict(conditions), estimate)
        return found

    def trainable(self) -> Mapping[str, nn.Parameter]:
        return self._denoiser.trainable()


class DataParallel:
    """Stepper in which rank r takes the r-th part of every batch; parts differ by one row at most."""

    def __init__(
        self,
        denoiser: CheckpointDenoiser,
        encoders: Encoders,
        objective: Objective,
        place: Place,
        *,
        micro_batch: int = 0,
        autocast: torch.autocast | None = None,
    ) -> None:
        """See SingleProcess. A batch has at least one row for each rank."""
        self._synchronised = _Synchronised(denoiser)
        self._own = SingleProcess(self._synchronised, encoders, objective, micro_batch=micro_batch, autocast=autocast)
        self._place, self._micro_batch = place, micro_batch

    def step(self, batch: Batch, upcoming: Batch | None = None, loss_scale: float = 1.0) -> float:
        part = self._part(batch)
        rows = self._micro_batch or len(part)
        total = 0.0
        for start in range(0, len(part), rows):
            last = start + rows >= len(part)
            with nullcontext() if last else self._synchronised.ddp.no_sync():
                # DDP averages gradients over ranks; losses are shares of the whole batch, so gradients are to be summed
                total += self._own.step(part.part(start, start + rows), None, loss_scale * self._place.world)
        return self._summed(total)

    def evaluate(self, batch: Batch) -> float:
        part = self._part(batch)
        return self._summed(self._own.evaluate(part) if len(part) else 0.0)

    def parameters(self) -> Mapping[str, nn.Parameter]:
        return self._own.parameters()

    def gradient_norm(self) -> float:
        return self._own.gradient_norm()  # every rank holds all gradients

    def gather(self) -> None:
        """Do nothing: every rank holds the model."""

    def _part(self, batch: Batch) -> Batch:
        rank, world = self._place.rank, self._place.world
        return batch.part(rank * len(batch) // world, (rank + 1) * len(batch) // world)

    def _summed(self, value: float) -> float:
        """Return the sum over the ranks."""
        held = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(held)
        return float(held)
