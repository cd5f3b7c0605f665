"""Forecasts: the predicted seconds of runs that wait in a lane, by which plans meet deadlines (PatchedServe §6.2)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from shared.domain.plan_rules import lane_for
from shared.domain.types import Plan, Request


@dataclass(frozen=True, slots=True)
class Forecast:
    """Predicted seconds of a new run by one model in one lane."""

    lane: str
    model: str
    wait_s: float
    """Seconds until the jobs ahead have left."""
    step_s: float
    """Seconds of one step alone, by this model with its guidance for the request."""
    decode_s: float = 0.0
    slowdown: float = 1.0
    """Factor by which the other requests of the batch slow the run down."""

    def alone_s(self, steps: int) -> float:
        """Return the seconds of `steps` steps and of decoding, on a worker of its own."""
        return self.decode_s + steps * self.step_s

    def finish_s(self, steps: int) -> float:
        """Return the seconds from acceptance to the finish of a run of `steps` steps."""
        return self.wait_s + self.slowdown * self.alone_s(steps)


def forecast_of(
    plan: Plan, request: Request, served: Collection[str], forecasts: Sequence[Forecast]
) -> Forecast | None:
    """Return the forecast for the plan's lane and model; None where there is none. served: the models of images."""
    key = lane_for(request, plan, served), plan.model
    return next((one for one in forecasts if (one.lane, one.model) == key), None)


def format_s(seconds: float) -> str:
    """Format seconds with three digits, but never as a power of ten."""
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"
