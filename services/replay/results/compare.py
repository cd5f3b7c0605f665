"""Compare two replays, or two policies, with confidence intervals over users."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from shared.domain.errors import ConfigurationError, InvalidRequestError

ROUNDS = 1000
DECISIONS = "decisions.npz"
"""File with the start steps of the counted requests by `<states>/<policy>`, their `users`, and their `steps` (T) if
each request has its own."""
OF_REQUESTS = ("users", "steps")

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Side:
    """The folder of a replay, and one of its policies; "": all of its policies."""

    folder: Path
    policy: str = ""

    def __str__(self) -> str:
        return f"{self.folder}:{self.policy}" if self.policy else str(self.folder)


@dataclass(frozen=True)
class Line:
    """Comparison of one policy in two replays, or of two policies, at one budget."""

    states: int
    policy: str
    what: str
    """`steps saved`, as shares of all steps, or `hits`, as shares of all requests."""
    first: float
    second: float
    low: float
    high: float
    """Bounds `low` and `high` of 95 % of the resampled differences, second minus first."""


def sides(given: Sequence[str]) -> list[Side]:
    """Parse two or more of FOLDER, or two or more of FOLDER:POLICY; raises InvalidRequestError for anything else."""
    read = [_side(text) for text in given]
    if len(read) < 2:
        raise InvalidRequestError(
            "compare", "must be two or more of FOLDER, or two or more of FOLDER:POLICY", " ".join(given)
        )
    if len({bool(side.policy) for side in read}) > 1:
        raise InvalidRequestError(
            "compare", "must name a policy with each folder (FOLDER:POLICY), or with none", " ".join(given)
        )
    return read


def _side(text: str) -> Side:
    folder, colon, policy = text.rpartition(":")
    return Side(Path(folder), policy) if colon and folder and not Path(text).is_dir() else Side(Path(text))


def resampled(
    values: Floats, users: Ints, rounds: int = ROUNDS, seed: int = 0, weights: Floats | None = None
) -> Floats:
    """Return `rounds` bootstrap means of `values`, which has one value per request.

    Whole users are resampled with all their requests, because the requests of one user are not independent. Each
    request counts by its weight; None: all equally.
    """
    _, user = np.unique(users, return_inverse=True)
    each = np.ones(len(users)) if weights is None else weights
    counts = np.bincount(user, weights=each)
    sums = np.bincount(user, weights=values * each)
    rng = np.random.default_rng(seed)
    means = np.empty(rounds)
    for number in range(rounds):
        drawn = np.bincount(rng.integers(0, len(counts), len(counts)), minlength=len(counts))
        means[number] = (drawn @ sums) / (drawn @ counts)
    return means


def interval(values: Floats, users: Ints, weights: Floats | None = None) -> tuple[float, float]:
    """Return the 95 % interval of the mean over users."""
    low, high = np.quantile(resampled(values, users, weights=weights), (0.025, 0.975))
    return float(low), float(high)


def compare(first: Side, second: Side) -> Iterator[Line]:
    """Compare every policy that both folders have at the same budget, or one policy with another at common budgets.

    Differences are taken request by request, and intervals over resampled users. Raises ConfigurationError for a folder
    without a replay or without the policy. The same error is raised for replays of different requests, kinds of budgets
    or T, and for replays without a common policy and budget.
    """
    a, b = _summary(first), _summary(second)
    for name in ("digest", "requests", "warmup"):
        if a["trace"].get(name) != b["trace"].get(name):
            raise ConfigurationError(
                f"{first} and {second} are replays of different requests ({name} differs); replay one trace twice"
            )
    ours_of, theirs_of = (summary["budgets"][0].get("of", "states") for summary in (a, b))
    if ours_of != theirs_of:
        raise ConfigurationError(f"{first} has budgets in {ours_of}, {second} in {theirs_of}; replay both in one unit")
    ours, theirs = _decisions(first.folder), _decisions(second.folder)
    asked = _asked(ours, a)
    if not np.array_equal(asked, _asked(theirs, b)):
        raise ConfigurationError(
            f"{first} and {second} are replays of different requests (steps differ); replay one trace twice"
        )
    weights = asked / asked.mean()
    pairs = [(key, _beside(key, second)) for key in ours if _is_of(first, key)]
    both = [(mine, other) for mine, other in pairs if other in theirs]
    if not both:
        raise ConfigurationError(f"{first} and {second} have no policy and budget in common; replay a common one")
    for mine, other in both:
        names = ", ".join(dict.fromkeys((_label(mine, a), _label(other, b))))
        starts = ours[mine], theirs[other]
        saved = [start / asked for start in starts]
        hits = [(start > 0).astype(np.float64) for start in starts]
        for what, (one, two), each in (("steps saved", saved, weights), ("hits", hits, np.ones(len(asked)))):
            low, high = interval(two - one, ours["users"], each)
            before, after = (float((values * each).mean()) for values in (one, two))
            yield Line(int(mine.split("/")[0]), names, what, before, after, low, high)


def _asked(decisions: dict[str, npt.NDArray[Any]], summary: dict[str, Any]) -> Ints:
    """Return T of each counted request."""
    own = decisions.get("steps")
    return np.full(len(decisions["users"]), summary["settings"]["steps"], np.int64) if own is None else own


def arrivals(first: Side, second: Side) -> str:
    """Return the arrivals of both replays in words; the intervals hold for these arrivals only."""
    said = [_summary(side)["trace"]["arrivals"] for side in (first, second)]
    if said[0] == said[1]:
        return f"for one arrival pattern: {said[0]}"
    return f"for one arrival pattern each, which differ: {said[0]}; {said[1]}"


def _is_of(side: Side, key: str) -> bool:
    return key not in OF_REQUESTS and side.policy in ("", key.split("/", 1)[1])


def _beside(key: str, second: Side) -> str:
    """Return the other side's key at the same budget."""
    return f"{key.split('/', 1)[0]}/{second.policy}" if second.policy else key


def _label(key: str, summary: dict[str, Any]) -> str:
    policy = key.split("/", 1)[1]
    one = summary["settings"]["policies"][policy]
    by_pictures = one["reuses"] == "refine" or one.get("compares") == "pictures"
    return label(policy, by_pictures and not summary["settings"].get("real"))  # real images have measured cosines


def label(name: str, surrogate: bool) -> str:
    """Return a policy's name in tables and plots; surrogate results are marked."""
    return f"{name} (surrogate)" if surrogate else name


def _summary(side: Side) -> dict[str, Any]:
    try:
        summary: dict[str, Any] = json.loads((side.folder / "summary.json").read_text(encoding="utf-8"))
        if not all(summary[name] for name in ("trace", "settings", "budgets")):
            raise KeyError(side.folder)
        names = list(summary["settings"]["policies"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{side.folder}: no summary.json of a replay; name the folder given as --out"
        ) from error
    if side.policy and side.policy not in names:
        raise ConfigurationError(f"{side.folder} has no policy {side.policy!r}; it has {', '.join(names)}")
    return summary


def _decisions(folder: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        with np.load(folder / DECISIONS) as kept:
            decisions = dict(kept)
            decisions["users"]
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise ConfigurationError(f"{folder}: no {DECISIONS} with each request's start; replay it again") from error
    return decisions
