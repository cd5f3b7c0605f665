"""Measure how evenly a cache saves steps for its users: each user's share of saved steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

LEAST = 10
"""Minimum number of counted requests of a user; users with fewer are left out."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
CURVE = 21
"""Points of the curve of users, in ascending order of their savings."""


def fairness(
    users: npt.NDArray[np.int64],
    saved: npt.NDArray[np.float64],
    least: int = LEAST,
    weights: npt.NDArray[np.float64] | None = None,
) -> dict[str, Any]:
    """Return the figures of users with at least `least` requests.

    - `requests`: these users' share of all requests
    - `jain`: Jain's index of the users' shares of saved steps
    - `without_any`: share of the users who save nothing
    - `saved`, `curve`: quantiles of the shares, and quantiles at equal distances

    Without such a user the result has `users`: 0 and no figures.

    `users` and `saved` have shape (requests,): the user, and the share of its steps that each request saved. `weights`
    are the weights of the requests' steps; None: all equal.
    """
    counts = np.bincount(users)
    often = counts >= least
    if not often.any():
        return {"least_requests": least, "users": 0}
    each = np.ones(len(users)) if weights is None else weights
    shares = np.bincount(users, weights=saved * each)[often] / np.bincount(users, weights=each)[often]
    return {
        "least_requests": least,
        "users": int(often.sum()),
        "requests": float(counts[often].sum() / len(users)),
        "jain": jain(shares),
        "without_any": float((shares == 0).mean()),
        "saved": {f"p{100 * q:g}": float(np.quantile(shares, q)) for q in QUANTILES},
        "curve": np.quantile(shares, np.linspace(0, 1, CURVE)).tolist(),
    }


def jain(shares: npt.NDArray[np.float64]) -> float | None:
    """Return Jain's index (Σx)² / (n·Σx²): 1 for equal shares, 1/n if one user has everything; None for Σx = 0.

    Source: Jain, Chiu and Hawe 1984, DEC-TR-301.
    """
    squares = float((shares**2).sum())
    return float(shares.sum() ** 2 / (len(shares) * squares)) if squares > 0 else None
