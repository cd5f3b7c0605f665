"""The systems that serve a session trace, and a system's decision for one request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class System:
    """One system that serves the trace."""

    name: str
    title: str
    model: str = "large"
    """Model that generates misses."""
    steps: int = 50
    cached: bool = False
    """True: requests are looked up, and the cache begins with the warm-up's images."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings that differ from the defaults."""
    savings: float = 0.5
    other_seeds: bool = False
    raised_by: float = 0.0
    """Added to every threshold of the tables for starts from images (MoDM Fig. 14)."""
    hands_out: bool = False
    """True: the nearest prompt's image is returned unchanged."""


@dataclass(frozen=True)
class Served:
    """The decision for one request of the trace, and the steps it took; `index` is the request's place in the trace."""

    index: int
    source: str
    model: str
    start_step: int
    steps: int
    """Requested steps T; less `start_step`, the steps that ran."""
    similarity: float
    may_run: tuple[tuple[str, int], ...]
    """(model, start step) of each model that may run the request, cheapest first."""

    @property
    def steps_run(self) -> int:
        return self.steps - self.start_step
