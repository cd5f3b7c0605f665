"""The systems that bench.pipeline_real compares, on this rank: pipelines by plan, DDP and FSDP2 at the same batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from services.trainer.finetuning.batches import Batch
from services.trainer.pipeline.runtime.parts import Training
from services.trainer.pipeline.runtime.splitting.chain import State


class System(Protocol):
    def step(self, batch: Batch, upcoming: Batch) -> float:
        """Leave the gradients of a batch in the parameters; return this rank's loss."""
        ...

    def clear(self) -> None:
        """Drop the gradients."""
        ...

    @property
    def waited_s(self) -> float | None:
        """Seconds in which this rank waited for the other ones, over all iterations; None where nothing counts them."""
        ...


class Pipelined:
    """A plan on the executor."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor

    def step(self, batch: Batch, upcoming: Batch) -> float:
        return float(self._executor.step(batch, upcoming))

    @property
    def waited_s(self) -> float | None:
        return float(self._executor.waited_s)

    def clear(self) -> None:
        for parameter in self._executor.parameters().values():
            parameter.grad = None


class _Whole(nn.Module):
    """An uncut model, whose forward pass torch's wrappers can see."""

    def __init__(self, training: Training, models: nn.ModuleDict) -> None:
        super().__init__()
        self.models = models
        self._chain = training.backbones[0].chain

    def forward(self, state: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self._chain({name: state[name] for name in self._chain.inputs})["prediction"]


class DataParallel:
    """Every rank trains the whole model on its part of the batch, after its frozen part."""

    def __init__(self, training: Training, models: nn.ModuleDict, *, sharded: bool) -> None:
        self._training, self._part = training, training.backbones[0]
        self._model: nn.Module = _Whole(training, models)
        if sharded:
            from torch.distributed.fsdp import fully_shard

            for layer in self._part.chain.layers:
                if len(layer.modules) == 1 and any(one.requires_grad for one in layer.parameters().values()):
                    fully_shard(next(iter(layer.modules.values())))
            locked = {one for one in models.parameters() if not one.requires_grad}  # frozen layers read them too
            fully_shard(self._model, ignored_params=locked)
        else:
            self._model = DistributedDataParallel(self._model)

    def step(self, batch: Batch, upcoming: Batch) -> float:
        del upcoming
        rank, world = dist.get_rank(), dist.get_world_size()
        rows = batch.part(rank * len(batch) // world, (rank + 1) * len(batch) // world)
        fed = self._part.feed(rows, self._encoded(rows))
        state = dict(fed.state)
        if self._part.estimate is not None:
            state["estimate"] = torch.zeros_like(state["sample"])
            if batch.second_pass:
                with torch.no_grad():
                    state["estimate"] = self._part.estimate(self._model(state), fed.target)
        loss = self._part.loss(self._model(state), fed.target)
        torch.autograd.backward(loss)
        return loss.item()

    @property
    def waited_s(self) -> float | None:
        return None

    @torch.no_grad()
    def _encoded(self, rows: Batch) -> State:
        found: State = {}
        for part in self._training.frozen:
            given = part.feed(rows, found)
            found |= part.chain({name: given[name] for name in part.chain.inputs})
        return found

    def clear(self) -> None:
        for parameter in self._model.parameters():
            parameter.grad = None
