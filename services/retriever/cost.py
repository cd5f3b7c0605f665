"""The cost of a start, by which the planner compares latents, images and noise, small and large models, and every T.

All starts keep the quality by the same bound (docs/adr/0013-starts.md). They therefore differ only in cost:

    cost = (T − K) · step + encode,

in steps of the model that was asked for. (T − K) · step is the work of the steps that are left (NIRVANA §4.3; MoDM
eqs. 3 and 4, where C_small is `step`). `encode` is the refining model's VAE encoding of an image.

A small model's step costs less than 1 only where the latencies of both models were measured alike. An unmeasured ratio
counts as 1, so that no request leaves the large model for an unproven saving. Then fewer steps decide, and among equals
the small model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shared.models.latency import Latency


@dataclass(frozen=True, slots=True)
class Pace:
    """The cost of one model's work, in steps of the model that was asked for."""

    step: float = 1.0
    encode: float = 0.0
    """Cost of encoding an image. The measured cost of decoding is taken, since a VAE's halves take about as long."""
    known: bool = False


def pace_of(latencies: Iterable[Latency], asked: Sequence[Latency]) -> Pace:
    """Return the pace of one model relative to the one asked for, by the first latencies of both that were measured
    alike. Latencies of one machine are preferred: both measured here, or both as shipped. Without such latencies, a
    step costs 1."""
    alike = [(one, other) for one in latencies for other in asked if one.comparable(other)]
    if not alike:
        return Pace()
    one, other = min(alike, key=lambda pair: pair[0].here != pair[1].here)
    return Pace(one.step_s / other.step_s, one.decode_s / other.step_s, known=True)


def cost_of(pace: Pace, steps: int, start: int, *, picture: bool) -> float:
    """Return the cost of the rest of a run of `steps` that begins after `start`."""
    return (steps - start) * pace.step + (pace.encode if picture else 0.0)
