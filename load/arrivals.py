"""Seeded arrival processes, as ascending lists of seconds from the start."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from math import inf, sqrt

from shared.domain.errors import InvalidRequestError


def poisson(rate_per_s: float, count: int, seed: int = 0) -> list[float]:
    """Return `count` arrivals of a Poisson process with `rate_per_s` arrivals a second.

    Raises InvalidRequestError for a rate that is not positive and finite.
    """
    _positive("rate_per_s", rate_per_s)
    rng = random.Random(seed)
    now, times = 0.0, []
    for _ in range(count):
        now += rng.expovariate(rate_per_s)
        times.append(now)
    return times


def ramp(from_per_s: float, to_per_s: float, duration_s: float, seed: int = 0) -> list[float]:
    """Return arrivals in [0, duration_s) of a Poisson process whose rate changes linearly between two values.

    A unit-rate process is mapped through the inverse of the expected count Λ(t) = a·t + (b − a)·t²/(2·duration).
    Raises InvalidRequestError for a negative rate, two zero rates, or a duration that is not positive.
    """
    _positive("duration_s", duration_s)
    if min(from_per_s, to_per_s) < 0 or not 0 < from_per_s + to_per_s < inf:
        raise InvalidRequestError(
            "from_per_s, to_per_s", "must not be negative, and not both zero", (from_per_s, to_per_s)
        )
    rng = random.Random(seed)
    slope = (to_per_s - from_per_s) / duration_s
    total = (from_per_s + to_per_s) / 2 * duration_s
    expected, times = rng.expovariate(1.0), []
    while expected < total:
        # the root of slope/2·t² + a·t = expected in [0, duration); this form also holds for slope 0
        times.append(2 * expected / (from_per_s + sqrt(max(0.0, from_per_s**2 + 2 * slope * expected))))
        expected += rng.expovariate(1.0)
    return times


def trace(recorded_s: Sequence[float], speed: float = 1.0) -> list[float]:
    """Return a recorded trace's arrivals, counted from the first, `speed` times as fast.

    Raises InvalidRequestError for a speed that is not positive, and for times that are not in ascending order.
    """
    _positive("speed", speed)
    if any(later < earlier for earlier, later in pairwise(recorded_s)):
        raise InvalidRequestError("recorded_s", "must be in ascending order")
    return [(time - recorded_s[0]) / speed for time in recorded_s]


def offered(
    process: str, duration_s: float, recorded_s: Sequence[float] = (), *, speed: float = 1.0, seed: int = 0
) -> list[float]:
    """Return the arrivals of the first `duration_s` seconds of a named process.

    Names are `poisson:RATE` and `ramp:FROM:TO` (requests a second), and `trace`: the recorded arrivals, `speed` times
    as fast. Raises InvalidRequestError for any other name, and for wrong numbers.
    """
    kind, *numbers = process.split(":")
    try:
        rates = [float(number) for number in numbers]
    except ValueError:
        kind = ""
    match kind, len(numbers):
        case "poisson", 1:
            return ramp(rates[0], rates[0], duration_s, seed)
        case "ramp", 2:
            return ramp(rates[0], rates[1], duration_s, seed)
        case "trace", 0:
            return [time for time in trace(recorded_s, speed) if time < duration_s]
    raise InvalidRequestError("process", "must be poisson:RATE, ramp:FROM:TO, or trace", process)


def _positive(name: str, value: float) -> None:
    if not 0 < value < inf:
        raise InvalidRequestError(name, "must be positive and finite", value)
