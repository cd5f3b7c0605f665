"""Guesses of an attacker from what it observes, and their rate of success."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sklearn.feature_extraction import DictVectorizer
from sklearn.tree import DecisionTreeClassifier

from shared.client.views import JobView

Z = 1.959964
"""Standard normal quantile of a two-sided interval of 95 %."""
MARGIN = 0.02
"""Largest rate above chance that scopes allow (issue of the attack suite)."""
CALIBRATION, LEAST_CALIBRATION = 0.1, 60
"""Attempts before the counted ones whose bits the attacker knows, as a share of the counted ones; at least so many."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
Features = Mapping[str, float]


class Trial(NamedTuple):
    """One attempt: what the attacker observed, and the bit that it is to guess."""

    seen: Features
    bit: bool


@dataclass(frozen=True)
class Rate:
    """Successes of an attack. chance: the rate of blind guesses."""

    right: int
    guesses: int
    chance: float = 0.5

    @property
    def value(self) -> float:
        return self.right / self.guesses

    def as_figures(self) -> dict[str, float]:
        low, high = wilson(self.right, self.guesses)
        return {"rate": self.value, "low": low, "high": high, "guesses": self.guesses, "chance": self.chance}


def wilson(right: int, guesses: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson, JASA 22, 1927)."""
    share, spread = right / guesses, Z * Z / guesses
    middle = (share + spread / 2) / (1 + spread)
    half = Z / (1 + spread) * math.sqrt(share * (1 - share) / guesses + spread / (4 * guesses))
    return middle - half, middle + half


def calibration(count: int) -> int:
    """Return the attempts that an attacker of `count` guesses makes to learn what to look at."""
    return max(LEAST_CALIBRATION, math.ceil(CALIBRATION * count))


def guessed(trials: Sequence[Trial], count: int) -> Rate:
    """Return the rate of the last `count` trials' guesses. The attacker fits a small tree to the trials before, whose
    bits it knows: it may use its own requests as victims. So no rule of ours decides what gives a bit away."""
    known, asked = trials[:-count], trials[-count:]
    table = DictVectorizer(sparse=False)
    tree = DecisionTreeClassifier(max_depth=4, min_samples_leaf=max(5, len(known) // 50), random_state=0)
    tree.fit(table.fit_transform([one.seen for one in known]), [one.bit for one in known])
    guesses = tree.predict(table.transform([one.seen for one in asked]))
    return Rate(sum(bool(guess) == one.bit for guess, one in zip(guesses, asked, strict=True)), count)


def observed(view: JobView, prefix: str = "") -> dict[str, float]:
    """Return everything that a plan shows to its caller but ids: numbers, words, and the numbers in its reasons."""
    plan, steps = view.job.plan, view.job.request.steps
    found: dict[str, float] = {
        f"source {plan.source}": 1.0,
        f"relation {plan.relation}": 1.0,
        f"predicted {plan.predicted_hit}": 1.0,
        f"found {plan.found}": 1.0,
        "start step": plan.start_step,
        "steps to run": plan.run_steps(steps) - plan.start_step,
        "similarity": plan.similarity,
        "candidates": len(plan.candidates),
    }
    for text in (plan.reason, *plan.degraded, *view.job.warnings):
        _add_text(found, "plan", text)
    for one in plan.candidates:
        who = "own" if one.prompt else "others'"
        for name, value in (("nearest", one.similarity), ("allowed", one.allowed_step), ("start", one.start_step)):
            found[f"{who} {name}"] = max(found.get(f"{who} {name}", 0.0), value)
        _add_text(found, who, one.reason)
    return {prefix + name: float(value) for name, value in found.items()}


def nearest_of_others(view: JobView) -> float:
    """Return the similarity of the nearest candidate that is not the caller's own; 0 where the plan shows none."""
    return max((one.similarity for one in view.job.plan.candidates if not one.prompt), default=0.0)


def _add_text(found: dict[str, float], who: str, text: str) -> None:
    """Count a text without its numbers, and note the largest of each of its numbers."""
    shape = f"{who}: {_NUMBER.sub('#', text)}"
    found[shape] = found.get(shape, 0.0) + 1.0
    for place, number in enumerate(_NUMBER.findall(text)):
        name = f"{shape} [{place}]"
        found[name] = max(found.get(name, 0.0), float(number))
