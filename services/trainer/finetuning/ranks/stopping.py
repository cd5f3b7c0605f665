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
    """What SIGINT and SIGTERM ask for while `heard` is entered."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._number = 0

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Note a first signal while the block runs; a second one ends the process as usual."""
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
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
