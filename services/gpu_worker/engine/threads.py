"""How many threads a step is worth, found from live steps: one small picture alone is often drawn fastest on one.

A step of the bundled `large` for one request took 27 ms on one thread of two cores and 61 ms on two, where the threads
mostly waited for each other; eight requests took the same on either, and beside other work two threads were four times
as slow at any size. Which is faster depends on model, batch, machine and neighbours, so it is measured where it runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from shared.runtime.settings import Settings

SAMPLES = 4
"""Steps with each count; the fastest of them counts, since other work only ever adds to a step."""
WORTH = 0.95
"""Half as many threads stay when they take at most this share of the time."""


@dataclass(slots=True)
class _Search:
    """From every core downwards, halving for as long as that is faster."""

    trying: int
    seconds: list[float] = field(default_factory=list)
    """Per latent element, of the steps with `trying` threads."""
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
    """Threads per model and amount of work (latent elements, by powers of two); not thread-safe, as the engine."""

    def __init__(self, most: int, use: Callable[[int], None] = torch.set_num_threads) -> None:
        """most: threads to begin with; use: told before a step whenever the count changes."""
        self._most, self._use, self._now = most, use, 0
        self._searches: dict[tuple[str, int], _Search] = {}

    def before(self, model: str, elements: int) -> None:
        """To be called before a step over so many latent elements."""
        threads = self._search(model, elements).trying
        if threads != self._now:
            self._use(threads)
            self._now = threads

    def after(self, model: str, elements: int, seconds: float) -> None:
        """What that step took."""
        search = self._search(model, elements)
        if not search.settled:
            search.took(seconds / elements)

    def _search(self, model: str, elements: int) -> _Search:
        return self._searches.setdefault((model, elements.bit_length()), _Search(self._most))


def search(settings: Settings, device: torch.device) -> StepThreads | None:
    """For a model on `device`; None where nothing may be chosen: one core, a GPU, a number in the settings, or
    `batch_invariant`, whose steps are one thread's."""
    cores = torch.get_num_threads()
    free = device.type == "cpu" and not settings.batch_invariant and not settings.torch_threads
    return StepThreads(cores) if free and cores > 1 else None
