"""The PID controller that brings the number of large models to what the heuristic wants (MoDM §5.3, Algorithm 1).

The paper's text gives three gains (.6, .05, .05) and Algorithm 1's last line, `num_large = PIDController.compute(…)`.
The text names neither the unit of time nor the form of the controller. The published code, once a period of dt minutes:

    error = target − output;  integral += error · dt;  derivative = (error − error before) / dt
    output += p · error + i · integral + d · derivative

There dt enters I and D only. P moves the output by .6 of the error in each period, whether of 3 s or of 3 minutes. In
a short period D divides the first error by a small number. From 16 towards 6, periods of 180 s (dt = 3) give 8.33,
5.21, 4.00 and 3.79: the output passes the target. One period of 3 s gives −.025.

This controller differs in four ways. P, I and D all describe the rate of change of the output, in workers per minute,
integrated in steps of a second: the length of the period changes nothing else. D acts on the output alone, not on a
target that jumps. The output stops at the target, and the integral starts again there. The output stays within its
bounds. From 16 towards 6 at 180 s this gives 7.07 and 6.00. tests/unit/global_monitor/allocation/test_pid.py computes
both.
"""

from __future__ import annotations

from dataclasses import dataclass

STEP_MIN = 1 / 60
"""Minutes per integration step, one second, so that the length of a period changes only how often the target is
read."""


@dataclass(frozen=True, slots=True)
class Gains:
    """The published gains. Here all three are per minute; the published code divides time by minutes in I and D."""

    p: float = 0.6
    """Workers per minute per worker of error."""
    i: float = 0.05
    """Workers per minute per worker · minute."""
    d: float = 0.05
    """Workers per minute per worker per minute."""


@dataclass(frozen=True, slots=True)
class PidState:
    """State of the controller; `output` is the unrounded number of large models."""

    output: float
    error: float = 0.0
    integral: float = 0.0
    """Worker · minutes."""


def advance(state: PidState, target: float, minutes: float, gains: Gains, least: float, most: float) -> PidState:
    """Return the state after `minutes` towards `target`: output' = p·e + i·∫e − d·output', e = target − output.

    Anti-windup: the integral is reset when the output reaches the target, and does not grow while the output is at its
    bounds.
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
