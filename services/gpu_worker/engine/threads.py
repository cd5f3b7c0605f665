"""A search for the fastest thread count of a step, from live steps: one small image is often generated fastest on one
thread.

A step of the bundled `large` for one request, measured on two cores, took 27 ms on one thread and 61 ms on two. The two
threads mostly waited for each other. Eight requests took equally long on either. Beside other work, two threads were
four times as slow at any size. The best count depends on model, batch, machine and load, so it is measured in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from shared.runtime.settings import Settings

SAMPLES = 4
"""Steps measured per thread count; the fastest counts, since other work can only slow a step down."""
WORTH = 0.95
"""A halved thread count is kept if its steps take at most this share of the time."""


@dataclass(slots=True)
class _Search:
    """A search from every core downwards, halving the thread count while that is faster."""

    trying: int
    seconds: list[float] = field(default_factory=list)
    """Seconds per latent element, of the steps with `trying` threads."""
    best: int = 0
    best_seconds: float = math.inf
    settled: bool = False

    def took(self, seconds: float) -> None:
        self.seconds.append(seconds)
        if len(self.seconds) < SAMPLES:
            return
        fastest = min(self.seconds)
        self.seconds.clear()
        if fastest > WORTH * self.best_seconds:
            self.trying, self.settled = self.best, True
            return
        self.best, self.best_seconds = self.trying, fastest
        self.trying = max(self.trying // 2, 1)
        self.settled = self.best == 1


class StepThreads:
    """Thread counts per model and amount of work (latent elements, by powers of two). Not thread-safe, like the
    engine."""

    def __init__(self, most: int, use: Callable[[int], None] = torch.set_num_threads) -> None:
        """most: thread count to begin with; use: called before a step whenever the count changes."""
        self._most, self._use, self._now = most, use, 0
        self._searches: dict[tuple[str, int], _Search] = {}

    def before(self, model: str, elements: int) -> None:
        """Set the thread count before a step over this many latent elements."""
        threads = self._search(model, elements).trying
        if threads != self._now:
            self._use(threads)
            self._now = threads

    def after(self, model: str, elements: int, seconds: float) -> None:
        """Record the seconds that the step took."""
        search = self._search(model, elements)
        if not search.settled:
            search.took(seconds / elements)

    def _search(self, model: str, elements: int) -> _Search:
        return self._searches.setdefault((model, elements.bit_length()), _Search(self._most))


def search(settings: Settings, device: torch.device) -> StepThreads | None:
    """Return a search for models on `device`. None where the count is fixed: one core, a GPU, a number in the settings,
    or `batch_invariant`, whose steps run on one thread."""
    cores = torch.get_num_threads()
    free = device.type == "cpu" and not settings.batch_invariant and not settings.torch_threads
    return StepThreads(cores) if free and cores > 1 else None
