"""Figures of quality with two models: distances, scores, costs, differences between systems, and the goals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from bench.measuring.frechet import Features, difference_of_distances, distance_of_halves, frechet_distance
from bench.measuring.judging import Verdict, accuracy
from bench.traced.systems import Served
from services.replay.results.compare import interval
from services.replay.simulated.pace import STEPS, Profile
from shared.domain.types import PlanSource

PAIRS = (
    ("modm", "small"), ("modm", "vanilla"), ("fewer_steps", "modm"), ("nirvana_saving", "modm"),
    ("modm_large_only", "modm"), ("modm_window", "modm"), ("modm_higher", "modm"), ("modm_lower", "modm"),
)  # fmt: skip
"""Pairs of systems to compare; each difference is the first minus the second, with an interval."""
GOAL_CLIP, GOAL_ACCURACY = 0.95, 0.03
GOALS = (
    "distance below small alone's by more than chance (95 % interval below 0)",
    f"CLIP score at least {GOAL_CLIP:g} of vanilla's",
    f"object accuracy within {GOAL_ACCURACY:g} of vanilla's",
    f"background accuracy within {GOAL_ACCURACY:g} of vanilla's",
)


@dataclass(frozen=True)
class Scored:
    """One system's images and scores."""

    served: Mapping[int, Served]
    features: Features
    verdicts: Mapping[int, Verdict]


def cost(served: Iterable[Served], speeds: Mapping[str, Profile], rows: int = 8, steps: int = STEPS) -> float:
    """Return a worker's seconds per request, as a multiple of vanilla's at T = `steps`."""
    full = speeds["large"].share_s(rows, steps)
    return fmean(_seconds(one, speeds, rows) for one in served) / full


def _seconds(one: Served, speeds: Mapping[str, Profile], rows: int) -> float:
    if one.source == PlanSource.EXACT:
        return 0.0
    speed = speeds[one.model]
    encoded = speed.decode_s if one.source == PlanSource.IMAGE else 0.0
    return speed.share_s(rows, one.steps_run) + encoded


def figures_of(
    scored: Mapping[str, Scored], speeds: Mapping[str, Profile], users: Mapping[int, int], steps: int = STEPS
) -> dict[str, Any]:
    """Return all figures; `users` maps each index to the user of that request."""
    reference = scored["reference"].features
    systems: dict[str, dict[str, Any]] = {}
    for name, one in scored.items():
        if name == "reference":
            continue
        low, high = distance_of_halves(one.features, reference)
        systems[name] = {
            "distance": frechet_distance(one.features, reference),
            "distance_of_halves": [low, high],
            "clip": fmean(verdict.clip for verdict in one.verdicts.values()),
            "accuracy": accuracy(one.verdicts.values()),
            "cost": cost(one.served.values(), speeds, steps=steps),
            "k_histogram": k_histogram(one.served.values()),
            "hit_rate": fmean(each.source != PlanSource.NOISE for each in one.served.values()),
            "steps_run": fmean(
                0 if each.source == PlanSource.EXACT else each.steps_run for each in one.served.values()
            ),
        }  # fmt: skip
    for figures in systems.values():
        figures["clip_ratio"] = figures["clip"] / systems["vanilla"]["clip"]
    pairs = {f"{one} - {other}": (one, other) for one, other in PAIRS if {one, other} <= systems.keys()}
    found = {pair: differences(scored[one], scored[other], reference, users) for pair, (one, other) in pairs.items()}
    return {
        "systems": systems, "differences": found, "goals": goals(systems, found),
        "pictures": len(scored["vanilla"].served),
    }  # fmt: skip


def k_histogram(served: Iterable[Served]) -> dict[str, int]:
    """Count requests by K of 50; 0 is a miss."""
    found = Counter(STEPS * one.start_step // one.steps for one in served)
    return {str(k): count for k, count in sorted(found.items())}


def differences(
    one: Scored, other: Scored, reference: Features, users: Mapping[int, int]
) -> dict[str, tuple[float, float, float]]:
    """Return (difference, low, high) of the first system minus the second, request by request.

    The 95 % intervals are bootstrapped over users; the distance has a jackknife interval over prompts."""
    found = {"distance": difference_of_distances(one.features, other.features, reference)}
    both = sorted(one.verdicts.keys() & other.verdicts.keys())
    who = np.array([users[index] for index in both])
    values = {"clip": [one.verdicts[index].clip - other.verdicts[index].clip for index in both]}
    if all(each.verdicts[index].right for each in (one, other) for index in both):
        values["all"] = [
            float(all(one.verdicts[index].right.values()) - all(other.verdicts[index].right.values()))
            for index in both
        ]  # fmt: skip
    return found | {name: (fmean(some), *interval(np.array(some), who)) for name, some in values.items()}


def goals(systems: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, bool]:
    modm, vanilla = systems["modm"], systems["vanilla"]
    near = {
        name: abs(modm["accuracy"].get(name, 0.0) - vanilla["accuracy"].get(name, 1.0)) <= GOAL_ACCURACY
        for name in ("object", "background")
    }
    *_, most = found["modm - small"]["distance"]
    met = (most < 0, modm["clip_ratio"] >= GOAL_CLIP, *near.values())
    return dict(zip(GOALS, met, strict=True))
