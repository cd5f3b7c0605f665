"""Fréchet distance between two sets of features as Gaussians (Heusel et al. 2017, MoDM §6), with intervals."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Features = npt.NDArray[np.float64]
"""One row per image, shape (images, dim)."""


def frechet_distance(one: Features, other: Features) -> float:
    """Return |μ₁ − μ₂|² + tr(Σ₁ + Σ₂ − 2·(Σ₁Σ₂)^½); 0 for equal sets.

    The computation accepts the singular covariances of fewer images than dimensions. Their distance is biased, so
    compare only equal numbers of images. tr (Σ₁Σ₂)^½ is the sum of the singular values of Σ₁^½·Σ₂^½: only symmetric
    matrices get a square root, and rounding gives no complex values. Raises ValueError for sets of fewer than two rows,
    and for rows of different lengths.
    """
    if one.ndim != 2 or other.ndim != 2 or one.shape[1] != other.shape[1] or min(len(one), len(other)) < 2:
        raise ValueError(f"both sets must have at least two rows of one length (got shapes {one.shape}, {other.shape})")
    apart = one.mean(axis=0) - other.mean(axis=0)
    first, second = (np.atleast_2d(np.cov(each, rowvar=False)) for each in (one, other))
    together = np.linalg.svd(_root(first) @ _root(second), compute_uv=False).sum()
    return float(max(apart @ apart + np.trace(first) + np.trace(second) - 2 * together, 0.0))


def _root(covariance: Features) -> Features:
    """Return the square root of a symmetric matrix; eigenvalues below zero from rounding count as zero."""
    values, vectors = np.linalg.eigh(covariance)
    root: Features = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return root


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
