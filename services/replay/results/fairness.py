"""How evenly users profit from a cache: what each saves of the steps of their own requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

LEAST = 10
"""Counted requests from which on a user's share says something."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
CURVE = 21
"""Points of the curve from the user who saves least to the one who saves most."""


def fairness(
    users: npt.NDArray[np.int64],
    saved: npt.NDArray[np.float64],
    least: int = LEAST,
    weights: npt.NDArray[np.float64] | None = None,
) -> dict[str, Any]:
    """Over users with at least `least` requests: `jain` (Jain's index of their shares), `without_any` (share of them
    who save nothing), `saved` (quantiles of their shares) and `curve` (the same in equal distances).

    users, saved: (requests,), who asked, and the share of its steps that each request saved; weights: what each one's
    steps count, None: all alike. `requests` is the share of all of these that such users asked. Without such a user
    there is nothing but `users`: 0.
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
    """(Σx)² / (n·Σx²): 1 where all have the same, 1/n where one has all (Jain, Chiu and Hawe 1984, DEC-TR-301); None
    where nobody has anything."""
    squares = float((shares**2).sum())
    return float(shares.sum() ** 2 / (len(shares) * squares)) if squares > 0 else None
