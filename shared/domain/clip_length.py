"""The rules for the length of a clip that hold for every model."""

from __future__ import annotations

import math

from shared.domain.errors import InvalidRequestError


def check_length(frames: int | None, seconds: float | None) -> None:
    """Raise InvalidRequestError for a length that no model generates, or that is given twice. None: not given."""
    if frames is not None and seconds is not None:
        raise InvalidRequestError("seconds", "name frames or seconds, not both", seconds)
    if frames is not None and frames < 1:
        raise InvalidRequestError("frames", "must be a whole number of at least 1", frames)
    if seconds is not None and not 0 < seconds < math.inf:  # false for nan
        raise InvalidRequestError("seconds", "must be a number above 0", seconds)
