"""Figures of clips from judged rows: from noise at each T, and from states at each K."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from bench.measuring.recording import table
from bench.traced.frontier_figures import Interval, bootstrapped, interval
from shared.models.confidence import ratio_bounds

RENDERED, ROUND_TRIP = 0, -1
"""T of the rows of rendered clips, and of those after the model's autoencoder."""
NAMES = {RENDERED: "rendered", ROUND_TRIP: "round trip"}
READ = ("object", "background", "count", "motion", "background_motion")
"""Attributes in the tables; `all` means these."""
Row = Mapping[str, Any]


def from_noise(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return one row of figures per T, the largest first: it is what the others are compared with.

    `smooth_ratio` compares with the rendered clips of the same prompts; `by_motion` has the share of clips with the
    right motion, by motion."""
    of = {steps: {row["number"]: row for row in rows if row["steps"] == steps} for steps in {r["steps"] for r in rows}}
    first = of[max(of)] if of else {}
    return [
        {
            "steps": steps,
            **figures_of(list(own.values()), [first[n] for n in own]),
            "smooth": _mean(own, "smooth"),
            "smooth_ratio": _ratio(own, of.get(RENDERED, {}), "smooth"),
            "by_motion": _by_motion(list(own.values())),
        }
        for steps, own in sorted(of.items(), reverse=True)
    ]


def from_states(records: Sequence[Row]) -> list[dict[str, Any]]:
    """Return one row of figures per K of a profile's records, below the reference: the same prompts from noise.

    K = 0 stands for runs from noise at another T than the reference's.
    """
    found: list[dict[str, Any]] = []
    for k in sorted({row["k"] for row in records}):
        own, reference = (_sides([row for row in records if row["k"] == k], of) for of in ("", "_from_noise"))
        if not found:
            found.append({"way": "reference", **figures_of(reference, reference), "shown": _shown(reference)})
        way = f"K = {k}" if k else "noise, T of the profile"
        found.append({"way": way, "k": k, **figures_of(own, reference), "shown": _shown(own)})
    return found


def _sides(records: Sequence[Row], of: str) -> list[Row]:
    return [
        {"right": row["right" + of], "clip": max(row["score" + of], 0.0), "asked": row["asked_for"]} for row in records
    ]


def figures_of(own: Sequence[Row], reference: Sequence[Row]) -> dict[str, Any]:
    """Return shares of right attributes, differences from the reference, and the ratio of the CLIP scores."""
    clips, against = [row["clip"] for row in own], [row["clip"] for row in reference]
    judged = bool(own[0]["right"] and reference[0]["right"])
    shares = {name: _shares(own, name) for name in (*own[0]["right"], "all")} if judged else {}
    more = {name: bootstrapped(_right(own, name) - _right(reference, name)) for name in shares}
    return {
        "clips": len(own),
        "clip": fmean(clips),
        "clip_ratio": (sum(clips) / sum(against), *ratio_bounds(clips, against)) if any(against) else None,
        "right": shares,
        "more_right": more,
    }


def _right(rows: Sequence[Row], name: str) -> Any:
    names = READ if name == "all" else (name,)
    return np.array([float(all(row["right"][one] for one in names)) for row in rows])


def _shares(rows: Sequence[Row], name: str) -> Interval:
    return bootstrapped(_right(rows, name))


def _shown(rows: Sequence[Row]) -> Interval:
    """Return the share of clips that show what the pair changed, among pairs that change something."""
    return bootstrapped(
        np.array([float(all(r["right"][n] for n in r["asked"])) for r in rows if r["asked"] and r["right"]])
    )


def _mean(rows: Mapping[int, Row], name: str) -> Interval:
    return bootstrapped(np.array([row[name] for row in rows.values()]))


def _ratio(rows: Mapping[int, Row], others: Mapping[int, Row], name: str) -> Interval | None:
    """Return the ratio of the means over the prompts that both have; None without any."""
    both = [n for n in rows if n in others]
    own, against = ([one[n][name] for n in both] for one in (rows, others))
    return (sum(own) / sum(against), *ratio_bounds(own, against)) if both else None


def _by_motion(rows: Sequence[Row]) -> dict[str, float]:
    judged = [row for row in rows if row["right"] and "motion" in row]
    motions = sorted({row["motion"] for row in judged})
    return {one: fmean(row["right"]["motion"] for row in judged if row["motion"] == one) for one in motions}


def report(figures: Mapping[str, Any]) -> str:
    """Return the tables as Markdown."""

    def cells(row: Row) -> list[str]:
        shares = [interval(row["right"][name]) if row["right"] else "–" for name in (*READ, "all")]
        return [interval(row["clip_ratio"]) if row["clip_ratio"] else "–", *shares]

    heads = ["clips", "CLIP ratio", *READ, "all five"]
    noise = [
        [
            NAMES.get(row["steps"], row["steps"]),
            row["clips"],
            *cells(row),
            interval(row["smooth"]),
            interval(row["smooth_ratio"]) if row["smooth_ratio"] else "–",
        ]
        for row in figures["from_noise"]
    ]
    parts = [table(["from noise, T", *heads, "smooth", "of rendered"], noise)] if noise else []
    ways = [row for row in figures["from_noise"] if row["by_motion"]]
    if ways:
        shares = [[NAMES.get(row["steps"], row["steps"]), *row["by_motion"].values()] for row in ways]
        parts.append(table(["right motions, T", *ways[0]["by_motion"]], shares))
    states = [[row["way"], row["clips"], *cells(row), interval(row["shown"])] for row in figures["from_states"]]
    return "\n\n".join([*parts, *([table(["from a state", *heads, "change shown"], states)] if states else [])])
