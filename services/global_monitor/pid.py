"""The PID controller that brings the number of large models to what the heuristic wants (MoDM §5.3, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass

STEP_MIN = 1 / 60
"""A period is gone through in steps of a second, so that its length changes nothing but how often one looks."""


@dataclass(frozen=True, slots=True)
class Gains:
    """The published ones, and they are per minute: the published code steps its time in minutes (design §4)."""

    p: float = 0.6
    """Workers a minute per worker of error."""
    i: float = 0.05
    """Workers a minute per worker · minute."""
    d: float = 0.05
    """Workers a minute per worker a minute."""


@dataclass(frozen=True, slots=True)
class PidState:
    """`output` is the unrounded number of large models."""

    output: float
    error: float = 0.0
    integral: float = 0.0
    """Worker · minutes."""


def advance(state: PidState, target: float, minutes: float, gains: Gains, least: float, most: float) -> PidState:
    """After so many minutes towards `target`: output' = p·e + i·∫e + d·e', e = target − output.

    Integrated in small steps: with one step a period, gains per minute overshoot threefold at 5 minutes and the same
    numbers per second swing. e' is that of the output alone, else a target that jumps kicks it. Anti-windup: the
    integral is forgotten when the error changes its sign, where output' is 0 and the output stays, and does not grow
    while the output is at its bounds.
    """
    target = min(max(target, least), most)
    output, integral = min(max(state.output, least), most), state.integral
    if state.error * (target - output) <= 0:
        integral = 0.0
    while minutes > 1e-9:
        dt = min(STEP_MIN, minutes)
        minutes -= dt
        error = target - output
        moved = output + dt * (gains.p * error + gains.i * integral) / (1 + gains.d)
        if (target - moved) * error <= 0:
            return PidState(target)
        output = min(max(moved, least), most)
        integral += error * dt if output == moved else 0.0
    return PidState(output, target - output, integral)
