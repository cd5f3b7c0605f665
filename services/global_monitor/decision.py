"""The monitor's settings, and its decision: an allocation with all its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.global_monitor.allocation.modes import Mode, Target
from services.global_monitor.allocation.pid import Gains, PidState
from services.global_monitor.allocation.workload import Workload
from services.global_monitor.demand import Demand, Generations
from services.global_monitor.roster import Worker


@dataclass(frozen=True, slots=True)
class Rules:
    """The monitor's settings. Times are in seconds; the gains are per minute."""

    large: str
    smalls: tuple[str, ...] = ()
    """Small models, best first."""
    mode: Mode = "quality"
    period_s: float = 180.0
    window_s: float = 180.0
    gains: Gains = field(default_factory=Gains)
    band: float = 0.25
    """Hysteresis, in workers."""
    headroom: float = 0.1
    catch_up_s: float = 600.0
    turn_s: float = 30.0
    lapse_s: float = 15.0
    generations: Generations = field(default_factory=dict)
    """Steps of a full generation by model; for models not listed, the paper's number."""


@dataclass(frozen=True, slots=True)
class Decision:
    """An allocation and all its inputs."""

    at: float
    models: Mapping[str, str]
    """Worker → model."""
    mode: Mode
    """The mode in force, which may be the fallback mode."""
    demand: Demand
    work: Workload
    target: Target
    pid: PidState
    workers: tuple[Worker, ...]
    switches: tuple[str, ...] = ()
    """Workers whose model this decision changes."""
    kept: str = ""
    """Reason why a wanted switch was not made."""
    turns: str = ""
    """Workers on a turn, with the reason."""

    @property
    def why(self) -> str:
        return f"{self.target.why}; {self.turns}" if self.turns else self.target.why

    def count(self, model: str) -> int:
        return sum(one == model for one in self.models.values())
