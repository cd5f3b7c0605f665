"""Workers and a demand for the monitor, with times of their own."""

from __future__ import annotations

from collections.abc import Mapping

from services.global_monitor.decision import Decision, Rules
from services.global_monitor.monitor import GlobalMonitor
from shared.domain.messages import JobQueued, JobSucceeded, WorkerReported, lane_of, refine_lane

P = {"large": 1 / 60, "sdxl": 2 / 60, "sana": 6 / 60}
"""Full generations a second of an honest worker."""

TICK_S = 5.0
"""Workers report, and the monitor looks."""


class Town:
    """Workers that obey at once, and a demand that is served at once: what is looked at is the monitor."""

    def __init__(self, workers: int = 16, **rules: object) -> None:
        given = {"large": "large", "smalls": ("sdxl", "sana"), "headroom": 0.0, "catch_up_s": 0.0} | rules
        self.monitor = GlobalMonitor(Rules(**given), 0.0)  # type: ignore[arg-type]
        self.at, self._jobs = 0.0, 0
        self.models = {f"w{number:02}": "large" for number in range(workers)}
        self.rates: dict[str, Mapping[str, float]] = {}
        self.decisions: list[Decision] = []
        self._due = {"miss": 0.0, "hit": 0.0}

    def report(self) -> None:
        for name, model in self.models.items():
            rates = self.rates.get(name, P)
            steps = tuple((one, 1, 1 / rate / 50) for one, rate in rates.items())
            self.monitor.hear(WorkerReported(name, "gpu", model, 0, 1, steps), self.at)

    def run(self, minutes: float, per_minute: float, hits: float = 0.6, k: int = 25) -> Decision:
        """Evenly spaced requests for so long; the last decision."""
        for _ in range(round(minutes * 60 / TICK_S)):
            self.at += TICK_S
            self.report()
            self._ask("miss", (1 - hits) * per_minute / 60 * TICK_S, lane_of("large"), 0)
            self._ask("hit", hits * per_minute / 60 * TICK_S, refine_lane(), k)
            self.monitor.look(self.at)
            if self.monitor.urgent or self.at % self.monitor.rules.period_s == 0:
                self.decide()
        return self.decisions[-1]

    def _ask(self, kind: str, count: float, lane: str, k: int) -> None:
        self._due[kind] += count
        while self._due[kind] >= 1:
            self._due[kind] -= 1
            self._jobs += 1
            self.monitor.hear(JobQueued(str(self._jobs), lane, "large", "image", start_step=k), self.at)
            self.monitor.hear(JobSucceeded(str(self._jobs), 1), self.at)

    def decide(self) -> Decision:
        decision = self.monitor.decide(self.at)
        self.decisions.append(decision)
        self.models = {name: decision.models[name] for name in self.models}
        return decision

    def counts(self) -> list[int]:
        return [decision.count("large") for decision in self.decisions]
