"""Fréchet distance between two sets of features as Gaussians (Heusel et al. 2017, MoDM §6), with intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Features = npt.NDArray[np.float64]
"""One row per image, shape (images, dim)."""


def frechet_distance(one: Features, other: Features) -> float:
    """Return |μ₁ − μ₂|² + tr(Σ₁ + Σ₂ − 2·(Σ₁Σ₂)^½); 0 for equal sets.

    The computation accepts the singular covariances of fewer images than dimensions. Their distance is biased, so
    compare only equal numbers of images. With Σ = RᵀR, tr (Σ₁Σ₂)^½ is the sum of the singular values of R₁R₂ᵀ: rounding
    gives no complex values. Raises ValueError for sets of fewer than two rows, and for rows of different lengths.
    """
    if one.ndim != 2 or other.ndim != 2 or one.shape[1] != other.shape[1] or min(len(one), len(other)) < 2:
        raise ValueError(f"both sets must have at least two rows of one length (got shapes {one.shape}, {other.shape})")
    apart = one.mean(axis=0) - other.mean(axis=0)
    first, second = _factor(one), _factor(other)
    together = np.linalg.svd(first @ second.T, compute_uv=False).sum()
    return float(max(apart @ apart + (first**2).sum() + (second**2).sum() - 2 * together, 0.0))


def _factor(rows: Features) -> Features:
    """Return R of the rows' covariance RᵀR, without forming the covariance."""
    factor: Any = np.linalg.qr((rows - rows.mean(axis=0)) / (len(rows) - 1) ** 0.5, mode="r")
    return np.asarray(factor)


def distance_of_halves(one: Features, other: Features, rounds: int = 20, seed: int = 0) -> tuple[float, float]:
    """Return the 5 % and 95 % quantiles of the distance over random halves of both sets.

    They show whether two distances to one reference differ by more than chance. Distances of halves are higher than
    the distance of the whole sets, which has less bias."""
    rng, found = np.random.default_rng(seed), []
    size = min(len(one), len(other)) // 2
    for _ in range(rounds):
        some = (rng.permutation(len(each))[:size] for each in (one, other))
        found.append(frechet_distance(*(each[rows] for each, rows in zip((one, other), some, strict=True))))
    low, high = np.quantile(found, [0.05, 0.95])
    return float(low), float(high)


def difference_of_distances(
    one: Features, other: Features, reference: Features, rounds: int = 200, seed: int = 0
) -> tuple[float, float, float]:
    """Return how much farther `one` is from the reference than `other`, and the 95 % interval (difference, low, high).

    Rows with one number belong to the same prompt in all three sets. The interval is the spread over random halves of
    the prompts, the same half for all sets (delete-half jackknife), around the difference of the whole sets. Sampling
    with replacement would bias the result: repeated rows make covariances narrower and both distances larger.
    """
    rng, size = np.random.default_rng(seed), len(reference) // 2
    found = np.empty(rounds)
    for number in range(rounds):
        rows = rng.permutation(len(reference))[:size]
        half = reference[rows]
        found[number] = frechet_distance(one[rows], half) - frechet_distance(other[rows], half)
    whole = frechet_distance(one, reference) - frechet_distance(other, reference)
    low, high = np.quantile(found - found.mean(), [0.025, 0.975])
    return whole, whole + float(low), whole + float(high)
