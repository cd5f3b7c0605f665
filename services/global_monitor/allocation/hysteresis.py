"""From the PID's unrounded output to whole workers, without going back and forth at a half."""

from __future__ import annotations

import math


def whole(unrounded: float, now: int, band: float, least: int, most: int) -> int:
    """`now` until the output is more than .5 + `band` workers away from it, then the nearest number; in the bounds."""
    stays = abs(unrounded - now) <= 0.5 + band
    return min(max(now if stays else math.floor(unrounded + 0.5), least), most)
