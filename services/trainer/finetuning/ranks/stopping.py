"""Stop a run between two iterations: a signal to any rank ends all of them after the same one."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch
import torch.distributed as dist

from services.trainer.finetuning.ranks.group import Place

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """A request by SIGINT or SIGTERM to stop, noted inside of `listening`."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._number = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note a first signal while the block runs; a second one ends the process at once, inside of a collective
        too."""
        before = {number: signal.signal(number, self._note) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def number(self) -> int:
        """Return the signal that some rank got, the largest of several; 0 without one. All ranks call it."""
        if self._place.world == 1:
            return self._number
        found = torch.tensor([self._number])
        dist.all_reduce(found, dist.ReduceOp.MAX)  # on the CPU: gloo, whatever the passes use
        return int(found)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._number = number
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
