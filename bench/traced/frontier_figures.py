"""Figures of the frontier: each point against the first one, and each cached point against few steps from noise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean
from typing import Any

import numpy as np

from bench.measuring.frechet import Features, difference_of_distances, frechet_distance
from bench.measuring.judging import LOOKS, Verdict, look_against, pixels_of
from bench.measuring.recording import table
from bench.traced.request_stream import Generated
from shared.domain.types import PlanSource, Relation
from shared.models.confidence import mean_bounds, ratio_bounds
from shared.models.quality import likeness

Interval = tuple[float, float, float]
"""Value, lower and upper bound."""
UNKNOWN: Interval = (float("nan"),) * 3
AUTO = 0
"""T of a point whose plans choose T."""


@dataclass(frozen=True, slots=True)
class Point:
    """One way to generate every image."""

    sampler: str
    steps: int
    """T; AUTO: the plan chooses."""
    cached: bool = False
    unprompted: bool = False
    """Run the first steps from noise without the prompt, as where a plan chose T (ModelCard.unprompted)."""

    def __str__(self) -> str:
        return f"{self.sampler}, {self.way}"

    @property
    def way(self) -> str:
        steps = f"T = {self.steps}" if self.steps else "T by the plan"
        return ("cache, " if self.cached else "") + steps + (", first without the prompt" if self.unprompted else "")


@dataclass(frozen=True, slots=True)
class Scored:
    """Verdicts and CLIP features of one point's images, in the order of the turns."""

    generated: Generated
    verdicts: Sequence[Verdict]
    features: Features
    rerolled: Mapping[int, float]
    """Turn → distance (1 − cosine of the embeddings) between the images of a re-rolled prompt's two seeds."""


def figures_of(points: Mapping[Point, Scored], reference: Features) -> list[dict[str, Any]]:
    """Return one row per point; the first point is the baseline of CLIP ratio, look and differences."""
    baseline = next(iter(points.values()))
    distance0 = frechet_distance(baseline.features, reference)
    rows = []
    for point, own in points.items():
        same = own is baseline
        clips = _clips(own)
        differs = _differences(own, baseline, reference)
        more = (0.0, 0.0, 0.0) if same else differs["frechet"]
        look = look_against(own.generated.pictures, own.generated.pictures, baseline.generated.pictures)
        rows.append(
            {
                "sampler": point.sampler,
                "way": point.way,
                "steps": point.steps,
                "cached": point.cached,
                "images": len(clips),
                "steps_run": own.generated.steps_run,
                "processor_ms": own.generated.processor_ms,
                "clip": fmean(clips),
                "clip_ratio": (1.0, 1.0, 1.0) if same else _ratio(clips, _clips(baseline)),
                "attributes": bootstrapped(_all_right(own)),
                "attributes_more": differs["attributes"],
                **{name: look[name] for name in LOOKS},
                "frechet": distance0 + more[0],
                "frechet_more": more,
                "variety": _variety(own, baseline),
                "rerolls": len(own.rerolled),
                "copying": _copied(own, baseline, (Relation.TOPIC, Relation.OTHER)),
                "likeness_of_edits": _copied(own, baseline, (Relation.EDIT,)),
                **({"starts": starts(own.generated)} if own.generated.plans else {}),
            }
        )
    return rows


def starts(generated: Generated) -> dict[str, dict[str, Any]]:
    """Return, for each relation of the plans, the images, the share that was reused, and how many had each K of T."""
    groups: dict[str, list[tuple[int, int]]] = {}
    for plan in generated.plans.values():
        hit = plan.source is not PlanSource.NOISE
        groups.setdefault(plan.relation, []).append((plan.start_step if hit else 0, plan.run_steps(0)))
    return {
        name: {
            "images": len(some),
            "reused": fmean(step > 0 for step, _ in some),
            "k_of_t": {f"{k} of {t}" if t else str(k): count for (k, t), count in sorted(Counter(some).items())},
        }
        for name, some in sorted(groups.items())
    }


def against_few_steps(points: Mapping[Point, Scored], reference: Features) -> list[dict[str, Any]]:
    """Compare every cached point with every run from noise by the same sampler, prompt by prompt.

    The differences are cached − noise. `worse` names the measures whose interval is on the worse side of 0.
    """
    noise = {point: one for point, one in points.items() if not point.cached}
    return [
        {
            "way": point.way,
            "sampler": point.sampler,
            "noise": other.way,
            "noise_steps": other.steps,
            **_compared(own, few, reference),
        }
        for point, own in points.items()
        if point.cached
        for other, few in noise.items()
        if other.sampler == point.sampler
    ]


def equal_quality(compared: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each cached point, the fewest steps from noise that are not shown to be worse than it, and the share
    of those steps that the cache saves (negative: it runs more)."""
    found = []
    for way in dict.fromkeys(one["way"] for one in compared):
        same = sorted((one for one in compared if one["way"] == way), key=lambda one: one["noise_steps"])
        equal = next((one for one in same if not one["noise_worse"]), None)
        if equal is not None:
            steps, run = equal["noise_steps"], equal["steps_run"]
            saved = 1 - run / steps
            found.append(
                {"way": way, "steps_run": run, "noise": equal["noise"], "noise_steps": steps, "steps_saved": saved}
            )
    return found


def _compared(own: Scored, few: Scored, reference: Features) -> dict[str, Any]:
    differs = _differences(own, few, reference)
    signs = {"clip": 1, "attributes": 1, "variety": 1, "frechet": -1}
    worse = [name for name, sign in signs.items() if max(sign * differs[name][1], sign * differs[name][2]) < 0]
    noise_worse = [name for name, sign in signs.items() if min(sign * differs[name][1], sign * differs[name][2]) > 0]
    return {
        "steps_run": own.generated.steps_run,
        "processor_ms_more": own.generated.processor_ms - few.generated.processor_ms,
        **differs,
        "attributes_p": _mcnemar(_all_right(own), _all_right(few)),
        "worse": worse,
        "noise_worse": noise_worse,
    }


def _differences(own: Scored, other: Scored, reference: Features) -> dict[str, Interval]:
    """Return (difference, low, high) of own − other: bootstrapped over prompts, a jackknife for the distance."""
    both = sorted(own.rerolled.keys() & other.rerolled.keys())
    clips = np.array(_clips(own)) - np.array(_clips(other))
    return {
        "clip": bootstrapped(clips),
        "attributes": bootstrapped(_all_right(own) - _all_right(other)),
        "variety": bootstrapped(np.array([own.rerolled[one] - other.rerolled[one] for one in both])),
        "frechet": difference_of_distances(own.features, other.features, reference),
    }


def _mcnemar(own: Features, other: Features) -> float:
    """Return McNemar's exact two-sided p for the images that only one side has right."""
    won, lost = int((own > other).sum()), int((own < other).sum())
    tail = sum(comb(won + lost, k) for k in range(min(won, lost) + 1)) / 2 ** (won + lost)
    return min(1.0, 2 * tail)


def _variety(own: Scored, baseline: Scored) -> Interval:
    """Return the distance between the seeds of re-rolled prompts, as a share of the baseline's."""
    both = sorted(own.rerolled.keys() & baseline.rerolled.keys())
    return _ratio([own.rerolled[number] for number in both], [baseline.rerolled[number] for number in both])


def _copied(own: Scored, baseline: Scored, relations: Iterable[Relation]) -> Interval:
    """Return the likeness of reused images to their source, less that of the baseline's image to the same source."""
    plans, sources = own.generated.plans, own.generated.sources
    numbers = [number for number in sources if plans[number].relation in {one.value for one in relations}]
    if not numbers:
        return UNKNOWN
    values = []
    for number in numbers:
        source = pixels_of(sources[number])
        ours, theirs = (pixels_of(one.generated.pictures[number]) for one in (own, baseline))
        values.append(likeness(ours, source) - likeness(theirs, source))
    return fmean(values), *mean_bounds(values)


def _ratio(values: Sequence[float], references: Sequence[float]) -> Interval:
    return (sum(values) / sum(references), *ratio_bounds(values, references)) if sum(references) else UNKNOWN


def bootstrapped(values: Features, rounds: int = 2000, seed: int = 0) -> Interval:
    """Return the mean and its 95 % percentile interval over resampled prompts (Efron 1979); nan for no values."""
    if not len(values):
        return UNKNOWN
    drawn = np.random.default_rng(seed).integers(0, len(values), (rounds, len(values)))
    low, high = np.quantile(values[drawn].mean(axis=1), [0.025, 0.975])
    return float(values.mean()), float(low), float(high)


def _clips(scored: Scored) -> list[float]:
    return [max(one.clip, 0.0) for one in scored.verdicts]  # a CLIP score is never below 0 (Hessel et al., CLIPScore)


def _all_right(scored: Scored) -> Features:
    """Return 1 or 0 per image: whether all judged attributes are right; empty without a judge."""
    return np.array([float(all(one.right.values())) for one in scored.verdicts if one.right])


def report(figures: Mapping[str, Any]) -> str:
    """Return the points, the starts of the cached points, and the comparisons as Markdown."""
    parts = [_points(figures["points"])]
    for row in figures["points"]:
        if "starts" in row:
            found = [
                [name, one["images"], one["reused"], ", ".join(f"{k}: {n}" for k, n in one["k_of_t"].items())]
                for name, one in row["starts"].items()
            ]
            parts.append(table([f"{row['way']}: relation", "images", "reused", "K of T: images"], found))
    if figures["against_few_steps"]:
        parts.append(_comparisons(figures["against_few_steps"]))
    parts += [
        f"{one['way']}: {one['steps_run']:.2f} steps run; fewest steps from noise that are not shown to be worse: "
        f"{one['noise']}; saved {one['steps_saved']:.1%}"
        for one in figures["equal_quality"]
    ]
    return "\n\n".join(parts)


def _points(rows: Sequence[Mapping[str, Any]]) -> str:
    heads = ["sampler", "way", "steps run", "ms", "CLIP ratio", "all attributes", *LOOKS, "variety", "copying",
             "Fréchet × 1000", "… more than the first"]  # fmt: skip
    return table(
        heads,
        [
            [
                row["sampler"], row["way"], round(row["steps_run"], 2), round(row["processor_ms"], 1),
                interval(row["clip_ratio"]), interval(row["attributes"]), *(f"{row[name]:.3f}" for name in LOOKS),
                interval(row["variety"]), interval(row["copying"]), f"{1000 * row['frechet']:.1f}",
                interval([1000 * value for value in row["frechet_more"]], 1),
            ]
            for row in rows
        ],
    )  # fmt: skip


def _comparisons(rows: Sequence[Mapping[str, Any]]) -> str:
    heads = ["cached", "steps run", "from noise", "CLIP", "all attributes", "p", "distance of re-rolls",
             "Fréchet × 1000", "cache worse in"]  # fmt: skip
    return table(
        heads,
        [
            [
                row["way"], round(row["steps_run"], 2), row["noise"], interval(row["clip"]),
                interval(row["attributes"]), f"{row['attributes_p']:.2g}", interval(row["variety"]),
                interval([1000 * value for value in row["frechet"]], 1), ", ".join(row["worse"]) or "–",
            ]
            for row in rows
        ],
    )  # fmt: skip


def interval(values: Sequence[float], digits: int = 3) -> str:
    value, low, high = values
    return f"{value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})" if value == value else "–"
