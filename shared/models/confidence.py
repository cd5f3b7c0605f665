"""One-sided 95 % confidence bounds of ratios, shares and means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, covariance, fmean, variance

CONFIDENCE = 0.95
"""One-sided confidence level of the bounds."""


def ratio_bounds(values: Sequence[float], references: Sequence[float]) -> tuple[float, float]:
    """Return 95 % one-sided lower and upper confidence bounds of Σ values / Σ references for paired data (Fieller
    1954).

    The lower bound is the largest α for which the mean of the paired differences `value − α·reference` has a
    non-negative lower bound (Student's t). A reference near 0 weighs little here, while it would ruin a mean of ratios.
    Returns (−inf, inf) for fewer than three pairs, and where the mean of the references may be 0.
    """
    if len(values) < 3:
        return -math.inf, math.inf
    spreads = variance(values), variance(references), covariance(values, references)
    return moment_bounds(len(values), fmean(values), fmean(references), *spreads)


def moment_bounds(
    n: int, mean: float, reference: float, spread: float, reference_spread: float, shared_spread: float
) -> tuple[float, float]:
    """Return `ratio_bounds` of n ≥ 3 pairs from means, variances and covariance."""
    c = student_t(n - 1) ** 2 / n
    a = reference * reference - c * reference_spread
    if reference <= 0 or a <= 0:
        return -math.inf, math.inf
    half = mean * reference - c * shared_spread
    rest = mean * mean - c * spread
    root = math.sqrt(max(half * half - a * rest, 0.0))
    return (half - root) / a, (half + root) / a


def share_bounds(kept: Sequence[bool], references: Sequence[bool]) -> tuple[float, float]:
    """Return the bounds for the share of kept attributes, relative to those kept from noise. Without a single loss the
    data have no spread.

    One pseudo-row stands for losses not seen yet: for the lower bound a row lost at K and kept from noise, for the
    upper bound a row kept in both. The intervals of Wilson and of Agresti and Coull do the same.
    """
    values, against = [float(one) for one in kept], [float(one) for one in references]
    return ratio_bounds([*values, 0.0], [*against, 1.0])[0], ratio_bounds([*values, 1.0], [*against, 1.0])[1]


def mean_bounds(values: Sequence[float]) -> tuple[float, float]:
    """Return 95 % one-sided lower and upper confidence bounds of a mean (Student's t); (−inf, inf) for fewer than
    three values."""
    n = len(values)
    if n < 3:
        return -math.inf, math.inf
    half = student_t(n - 1) * math.sqrt(variance(values) / n)
    return fmean(values) - half, fmean(values) + half


def student_t(degrees: int) -> float:
    """Return the one-sided 95 % quantile by Cornish-Fisher: within .01 of the exact value from 4 degrees on."""
    z = NormalDist().inv_cdf(CONFIDENCE)
    return (
        z
        + (z**3 + z) / (4 * degrees)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
    )
