"""Quality of each K per kind of change, as numbers and as a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from services.retriever.profile import ProfileRow, by_kind
from shared.models.quality import BOUNDS


def quality(
    records: Sequence[Mapping[str, Any]], rows: Sequence[ProfileRow], alpha: float, steps: int
) -> dict[str, Any]:
    """Return quality.json for T = `steps`.

    `kinds`: kind of change → K → CLIP ratio, bound, share of images that show the change, and the four measures with
    their bounds (`shared.models.quality`). `right`: the share of correct images per attribute.
    """
    kinds: dict[str, dict[str, Any]] = {}
    for (kind, k), cell in by_kind(rows, alpha=alpha).items():
        kinds.setdefault(kind, {})[str(k)] = asdict(cell)
    right = {}
    for kind in sorted({record["kind"] for record in records}):
        those = [record for record in records if record["kind"] == kind]
        ks = sorted({record["k"] for record in those})
        right[kind] = {
            "from_noise": _shares([record["right_from_noise"] for record in those if record["k"] == ks[0]]),
            **{str(k): _shares([record["right"] for record in those if record["k"] == k]) for k in ks},
        }
    return {
        "alpha": alpha,
        "steps": steps,
        "pairs": len({record["pair"] for record in records}),
        "bounds": {name: asdict(bound) for name, bound in BOUNDS.items()},
        "kinds": kinds,
        "right": right,
    }


def _shares(judged: Sequence[Mapping[str, bool]]) -> dict[str, float]:
    return {name: fmean(one[name] for one in judged) for name in (judged[0] if judged else ())}


def plot(measured: Mapping[str, Any], path: Path) -> None:
    """Write a plot of two panels over K, one line per kind of change; ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    for number, (kind, cells) in enumerate(measured["kinds"].items()):
        colour = f"C{number}"  # the same in both panels
        ks = [int(k) for k in cells]
        left.plot(ks, [cell["mean_ratio"] for cell in cells.values()], marker="o", color=colour, label=kind)
        kept = [(int(k), cell["kept"]) for k, cell in cells.items() if cell["kept"] is not None]
        if kept:
            right.plot(*zip(*kept, strict=True), marker="o", color=colour, label=kind)
    left.axhline(1.0, color="grey", linewidth=0.8)
    left.axhline(measured["alpha"], color="grey", linewidth=0.8, linestyle="--")
    left.set(xlabel="start step K", ylabel="CLIP score from K ÷ from noise", title="quality ratio")
    right.set(xlabel="start step K", ylabel="share", title="change shown as asked", ylim=(0, 1.02))
    left.legend(fontsize=8)
    if right.lines:
        right.legend(fontsize=8)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
