"""Hysteresis: round the PID's output to whole workers, without alternating around a half."""

from __future__ import annotations

import math


def whole(unrounded: float, now: int, band: float, least: int, most: int) -> int:
    """Return `now` while the output is within .5 + `band` workers of it, else the nearest whole number; within the
    bounds."""
    stays = abs(unrounded - now) <= 0.5 + band
    return min(max(now if stays else math.floor(unrounded + 0.5), least), most)
