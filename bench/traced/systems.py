"""The ways to serve a session trace, and what a system decided for one request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class System:
    """One way to serve the trace."""

    name: str
    title: str
    model: str = "large"
    """Who draws misses."""
    steps: int = 50
    cached: bool = False
    """Whether requests are looked up; the cache then begins with the warm-up's pictures."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Of the settings."""
    savings: float = 0.5
    other_seeds: bool = False
    raised_by: float = 0.0
    """Added to every threshold of the tables for starts from images (MoDM Fig. 14)."""
    hands_out: bool = False
    """Nearest prompts' pictures are handed out as they are."""


@dataclass(frozen=True)
class Served:
    """What was decided for one request of the trace, and what drawing it took; `index` is its place in the trace."""

    index: int
    source: str
    model: str
    start_step: int
    steps: int
    """Asked for; with `start_step` the steps that were run."""
    similarity: float
    may_run: tuple[tuple[str, int], ...]
    """(model, start step) of everyone who could have drawn it, cheapest first."""

    @property
    def steps_run(self) -> int:
        return self.steps - self.start_step
