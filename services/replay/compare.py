"""Two replays side by side, with confidence intervals over users."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from shared.errors import ConfigurationError

ROUNDS = 1000
DECISIONS = "decisions.npz"
"""Start steps of every counted request by `<states>/<policy>`, and the `users` who asked."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Line:
    """One policy at one budget, in both replays; shares of all steps."""

    states: int
    policy: str
    first: float
    second: float
    low: float
    high: float
    """95 % of the resampled differences, second less first, lie between."""


def resampled(values: Floats, users: Ints, rounds: int = ROUNDS, seed: int = 0) -> Floats:
    """Means of `values` (one per request) with users drawn anew, with all their requests, `rounds` times: what one
    user asks is no independent evidence, whole users are."""
    _, user = np.unique(users, return_inverse=True)
    counts = np.bincount(user).astype(np.float64)
    sums = np.bincount(user, weights=values)
    rng = np.random.default_rng(seed)
    means = np.empty(rounds)
    for number in range(rounds):
        drawn = np.bincount(rng.integers(0, len(counts), len(counts)), minlength=len(counts))
        means[number] = (drawn @ sums) / (drawn @ counts)
    return means


def interval(values: Floats, users: Ints) -> tuple[float, float]:
    """The 95 % interval of the mean."""
    low, high = np.quantile(resampled(values, users), (0.025, 0.975))
    return float(low), float(high)


def compare(first: Path, second: Path) -> Iterator[Line]:
    """Every policy that both folders hold at the same budget.

    Raises ConfigurationError where a folder holds no replay, where the two counted other requests or in other budgets,
    and where nothing is in both.
    """
    a, b = _summary(first), _summary(second)
    for name in ("digest", "requests", "warmup"):
        if a["trace"].get(name) != b["trace"].get(name):
            raise ConfigurationError(f"{first} and {second} are no replays of the same requests: {name} differs")
    ours_of, theirs_of = (summary["budgets"][0].get("of", "states") for summary in (a, b))
    if ours_of != theirs_of:
        raise ConfigurationError(f"{first} has budgets in {ours_of}, {second} in {theirs_of}: not the same room")
    ours, theirs = _decisions(first), _decisions(second)
    users, both = ours["users"], [key for key in ours if key in theirs and key != "users"]
    if not both:
        raise ConfigurationError(f"{first} and {second} have no policy at the same budget in common")
    for key in both:
        states, policy = key.split("/", 1)
        of_steps = [kept[key] / summary["settings"]["steps"] for kept, summary in ((ours, a), (theirs, b))]
        low, high = interval(of_steps[1] - of_steps[0], users)
        shown = label(policy, a["settings"]["policies"][policy]["reuses"] == "refine")
        yield Line(int(states), shown, float(of_steps[0].mean()), float(of_steps[1].mean()), low, high)


def label(name: str, surrogate: bool) -> str:
    """How a policy is named wherever its figures are shown."""
    return f"{name} (surrogate)" if surrogate else name


def _summary(folder: Path) -> dict[str, Any]:
    try:
        summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        if not all(summary[name] for name in ("trace", "settings", "budgets")):
            raise KeyError(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{folder}: no summary.json of a replay") from error
    return summary


def _decisions(folder: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        with np.load(folder / DECISIONS) as kept:
            decisions = dict(kept)
            decisions["users"]
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise ConfigurationError(f"{folder}: no {DECISIONS} with each request's start; replay it again") from error
    return decisions
