"""Parts of a pipeline's job: backbones with their losses, and the frozen components that encode a batch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch

from services.trainer.pipeline.runtime.splitting.chain import Chain, State


class Rows(Protocol):
    """A batch: the same on every rank, and read by rows."""

    @property
    def size(self) -> Hashable:
        """Size of the images: batches of one size have tensors of equal shapes per row."""
        ...

    @property
    def second_pass(self) -> bool:
        """Whether the iteration is self-conditioned."""
        ...

    def __len__(self) -> int: ...

    def part(self, start: int, stop: int) -> Self:
        """Return rows `start` to `stop` (exclusive)."""
        ...


@dataclass(frozen=True)
class Fed:
    """Inputs of a backbone for some rows."""

    state: State
    """Inputs of the chain, without `estimate`."""
    target: Any
    """The argument of the loss and the estimate."""


@dataclass(frozen=True)
class FrozenPart:
    """A frozen component: its layers depend on each other linearly."""

    chain: Chain
    feed: Callable[[Any, Mapping[str, torch.Tensor]], State]
    """(rows of a batch, `prepares` for these rows) → inputs of the chain."""
    prepares: tuple[str, ...] = ()
    """Outputs of other components that `feed` reads."""


@dataclass(frozen=True)
class TrainedPart:
    """A backbone with its loss. Everything random depends on rows alone: any split of a batch sees the same."""

    chain: Chain
    feed: Callable[[Any, Mapping[str, torch.Tensor]], Fed]
    """(rows of a batch, frozen outputs for these rows) → inputs. The frozen outputs are `prepares`, and those that
    the layers of the stage read."""
    loss: Callable[[torch.Tensor, Any], torch.Tensor]
    """(prediction, target) → share of these rows in the loss of the iteration."""
    prepares: tuple[str, ...] = ()
    """Outputs of frozen components that `feed` itself reads: every stage gets them."""
    estimate: Callable[[torch.Tensor, Any], torch.Tensor] | None = None
    """(prediction, target) → what the second pass reads as `estimate`; None: not self-conditioned."""

    @property
    def self_conditioned(self) -> bool:
        return "estimate" in self.chain.inputs


@dataclass(frozen=True)
class Training:
    """All parts of a job."""

    backbones: tuple[TrainedPart, ...]
    """One, or the down and the up pipeline's."""
    frozen: tuple[FrozenPart, ...] = ()
    """In topological order, as in the profile."""

    def maker(self, name: str) -> tuple[int, int]:
        """Return (component, layer) that makes an output of the frozen part."""
        for component, part in enumerate(self.frozen):
            if name in part.chain.outputs:
                layer = part.chain.maker(name, len(part.chain.layers))
                if layer is not None:
                    return component, layer
        raise KeyError(f"no frozen component makes {name}")

    @property
    def encoded(self) -> tuple[str, ...]:
        """Return the names of all frozen outputs."""
        return tuple(name for part in self.frozen for name in part.chain.outputs)
