"""The learned bound of a profile: fitted, calibrated, measured on held-out pairs, and written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from services.cli.profiles.held_out import (
    COVERAGE,
    calibrated,
    folds_of,
    held_out,
    labels,
    learned,
    oracle,
    out_of_fold,
    outcome,
)
from services.cli.profiles.learning import (
    TEXT_PAIRS,
    Data,
    Recogniser,
    Similarities,
    kind_means,
    recogniser,
    text_pairs,
    with_all_levels,
)
from services.cli.profiles.measure import profile_row
from services.cli.profiles.pairs import FURTHER, grammar_of
from services.retriever.bounds import Near
from services.retriever.learned import COPYING, Ints, allowances
from services.retriever.profile import UNRELATED, build_table
from services.retriever.selection import allowed_step
from shared.models.confidence import mean_bounds
from shared.models.learned_table import MEASURES, Floats, LearnedTable, Levels
from shared.models.quality import Measured, compare

ALPHA = 0.95
NEARLY_ALL = 0.9
LEARNED, SIMILARITY, K_TABLE = "learned", "similarity alone", "K table"


def learned_table(
    data: Data, about: Mapping[str, Any], steps: int, similarities: Similarities, alpha: float = ALPHA
) -> LearnedTable:
    """Fit and calibrate the bound on all pairs; its report holds the figures of held-out pairs.

    about: first line of rows.jsonl. steps: T of the reference. similarities: those of pairs without images.
    """
    allowed = allowances(alpha)
    known = set(data.kinds)
    pairs = text_pairs(TEXT_PAIRS, similarities, grammar_of(about.get("frames", 1)))
    texts = [(one, kind) for one, kind in zip(*pairs, strict=True) if kind in known]
    found = recogniser([one for one, _ in texts], [kind for _, kind in texts])
    alone = recogniser([bare(one) for one, _ in texts], [kind for _, kind in texts])
    kept = labels(data, found.kinds, allowed)
    inside = out_of_fold(data, learned(lambda one: found.shares(one.near), found.kinds, allowed))
    weights, bias = found.compiled()
    levels = {}
    for of, means in kind_means(data, found.kinds).items():
        noise = _noise_bounds(data.noise[of]) if of in data.noise else None
        margin, variety = calibrated(inside[of], kept[of]), variety_of(data, of)
        levels[of] = Levels(
            *with_all_levels(data.ks[of], of, *means), margin, noise, variety.bound if variety else None
        )
    pictures = {name: about[name] for name in ("images_from", "images_weights_hash") if name in about}
    return LearnedTable(
        about["model"],
        about["weights_hash"],
        about["encoder_hash"],
        steps,
        alpha,
        found.kinds,
        found.knots,
        found.words,
        weights,
        bias,
        levels,
        floor_of(data, kept),
        "" if pictures else about["codec"],
        unprompted=about.get("unprompted", 0.0),
        **pictures,
        report=report(data, found, alone, kept, alpha),
    )


def variety_of(data: Data, steps: int) -> Measured | None:
    """Return the variety of runs of `steps` from noise, as a share of the reference's; None where not measured."""
    rows = [profile_row(of[steps][0]) for of in data.records if 0 in of.get(steps, {})]
    return compare([row.measures for row in rows], [row.measures_from_noise for row in rows]).variety


def floor_of(data: Data, kept: Mapping[int, Any]) -> float:
    """Return the similarity just below the least similar pair that keeps every bound at the first measured K of some T.

    Only pairs of kinds of which nearly all pairs do so count: below them, most of what is near loses quality, and
    nobody would choose to start there (docs/adr/0012-relation.md).
    """
    held = np.any([of[:, 0] for of in kept.values()], axis=0)
    kinds = np.array(data.kinds)
    safe = [kind for kind in set(data.kinds) if kind != UNRELATED and held[kinds == kind].mean() >= NEARLY_ALL]
    pairs = zip(data.near, data.kinds, held, strict=True)
    least = min((one.similarity for one, kind, keeps in pairs if keeps and kind in safe), default=1.0)
    return math.nextafter(least, -math.inf)


def bare(near: Near) -> Near:
    """Return the candidate without its prompts: its similarity alone."""
    return near._replace(prompt_before="", prompt_after="")


def k_tables(data: Data, alpha: float) -> dict[int, Ints]:
    """Return each pair's level + 1 by a K table that was measured on the pairs of other folds (Algorithm 2)."""
    index = {steps: np.zeros(len(data.near), int) for steps in data.change}
    for held in folds_of(len(data.near)):
        rest = np.setdiff1d(np.arange(len(data.near)), held)
        for steps, ks in data.ks.items():
            found = [
                profile_row(data.records[n][steps][k])
                for n in rest
                if steps in data.records[n] and data.kinds[n] not in FURTHER
                for k in ks
            ]
            if found:
                table = build_table(found, alpha=alpha, steps=steps)
                index[steps][held] = [
                    sum(k <= allowed_step(table, data.near[n].similarity, steps, floor=table.floor) for k in ks)
                    for n in held
                ]
    return index


def report(data: Data, found: Recogniser, alone: Recogniser, kept: Mapping[int, Any], alpha: float) -> dict[str, Any]:
    """Return the held-out figures of each T, for the learned bound and beside it for one similarity and the K table."""
    allowed = allowances(alpha)
    by_words = learned(lambda one: found.shares(one.near), found.kinds, allowed)
    by_similarity = learned(lambda one: alone.shares([bare(near) for near in one.near]), alone.kinds, allowed)
    methods = {
        LEARNED: held_out(data, by_words, kept),
        SIMILARITY: held_out(data, by_similarity, kept),
        K_TABLE: k_tables(data, alpha),
    }
    figures: dict[str, Any] = {}
    kinds = np.array(data.kinds)
    for steps, ks in data.ks.items():
        own = data.measured[steps]
        kept_here = kept[steps][own]
        best = outcome(oracle(kept_here, ks), kept_here, ks, steps)
        rows = {}
        for name, of in methods.items():
            index = of[steps][own]
            one = outcome(index, kept_here, ks, steps)
            same = outcome(oracle(kept_here, ks, one.coverage), kept_here, ks, steps)
            rows[name] = {
                "coverage": one.coverage,
                "of_starts": one.of_starts,
                "saved": one.saved,
                "starts": one.starts,
                "of_oracle": one.saved / same.saved if same.saved else None,
                "quality": _quality(data.change[steps][own], index, data.topic[own]),
                "all_right": _all_right([one[steps] for one in data.records if steps in one], index, ks),
            }
        every = np.array([0, *ks])
        figures[str(steps)] = {
            "pairs": int(own.sum()),
            "borrowed": int((~own).sum()),
            "oracle": {"coverage": best.coverage, "saved": best.saved},
            "methods": rows,
            "kinds": {
                kind: {
                    "pairs": int((own & (kinds == kind)).sum()),
                    "kept_up_to": _mean(every[kept[steps].sum(axis=1)][own & (kinds == kind)]),
                    "mean_k": _mean(every[methods[LEARNED][steps]][own & (kinds == kind)]),
                }
                for kind in found.kinds
            },
            "noise": None
            if steps not in data.noise
            else {
                name: {"value": 1 + float(np.nanmean(values)), "bound": 1 + mean_bounds(_known(values))[0]}
                for name, values in zip(MEASURES[:COPYING], data.noise[steps].T, strict=False)
            }
            | {"variety": asdict(variety) if (variety := variety_of(data, steps)) else None},
        }
    return {"alpha": alpha, "coverage_wanted": COVERAGE, "steps": figures}


def _all_right(records: Sequence[Mapping[int, Mapping[str, Any]]], index: Ints, ks: Sequence[int]) -> dict[str, Any]:
    """Return the shares of starts, and of the same requests from noise, whose image has every attribute right, also
    those that both prompts share; and the 95 % bound of their difference."""
    rows = [one[ks[level - 1]] for one, level in zip(records, index, strict=True) if level]
    own, noise = ([float(all(row[name].values())) for row in rows] for name in ("right", "right_from_noise"))
    bound = mean_bounds([one - other for one, other in zip(own, noise, strict=True)])[0]
    return {
        "starts": float(np.mean(own)) if rows else None,
        "from_noise": float(np.mean(noise)) if rows else None,
        "difference_bound": bound if math.isfinite(bound) else None,
    }


def _quality(change: Floats, index: Ints, topic: Any) -> dict[str, Any]:
    """Return each measure's mean over the starts, as a share of the reference's, with its 95 % confidence bound."""
    started = np.flatnonzero(index)
    found = {}
    for place, name in enumerate(MEASURES):
        rows = started[topic[started]] if place == COPYING else started
        values = change[rows, index[rows] - 1, place]
        sign, base = (-1.0, 0.0) if place == COPYING else (1.0, 1.0)
        bound = base + sign * mean_bounds(values.tolist())[0]
        found[name] = {
            "value": base + sign * float(values.mean()) if len(values) else None,
            "bound": bound if math.isfinite(bound) else None,
            "count": len(values),
        }
    return found


def _noise_bounds(values: Floats) -> Floats:
    """Return the lower confidence bound of each measure; copying has no source to copy."""
    bounds = np.array([mean_bounds(_known(one))[0] for one in values.T])
    bounds[COPYING] = 0.0
    return np.maximum(bounds, -1e9)  # JSON has no infinity


def _mean(values: Any) -> float | None:
    return float(values.mean()) if len(values) else None


def _known(values: Floats) -> list[float]:
    return [float(value) for value in values if not np.isnan(value)]
