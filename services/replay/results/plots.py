"""Plot a replay from its summary alone, with matplotlib."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from services.replay.results.compare import label
from services.replay.results.figures import AGES_S
from services.replay.results.relations import RELATIONS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf")
STYLES = ("-", "--", ":", "-.")
BAND = ("#d9d9d9", "#c6dbef", "#9ecae1", "#6baed6", "#3182bd", "#08519c", "#fdae6b", "#e6550d")

Summary = Mapping[str, Any]
Budget = Mapping[str, Any]


def plots(folder: Path, summary: Summary) -> list[Path]:
    """Write the plots as PNG files and return their paths; raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    made = [
        _against_budget(folder / "steps_saved.png", summary, "steps_saved", "share of steps saved"),
        _against_budget(folder / "hit_rate.png", summary, "hit_rate", "share of requests that hit"),
        _against_budget(folder / "evictions.png", summary, "evictions", "states evicted"),
        _against_budget(folder / "bytes.png", summary, "bytes", "bytes held at the end"),
    ]
    for budget in summary["budgets"]:
        made.append(_k_histogram(folder / f"k_{budget['states']}.png", budget))
        if all("by_relation" in one for one in budget["policies"].values()):
            made.append(_relations(folder / f"relations_{budget['states']}.png", budget))
        if any(one["timed"] for one in budget["policies"].values()):
            made.append(_latencies(folder / f"latency_{budget['states']}.png", budget))
        made.append(_ages(folder / f"reuse_age_{budget['states']}.png", budget))
        if any(one["fairness"]["users"] for one in budget["policies"].values()):
            made.append(_fairness(folder / f"fairness_{budget['states']}.png", budget))
    return made


def _looks(policies: Mapping[str, Any]) -> Iterable[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each policy's figures and its line style, the same in every plot."""
    for number, (name, one) in enumerate(policies.items()):
        style, colour = STYLES[number // len(COLOURS) % len(STYLES)], COLOURS[number % len(COLOURS)]
        yield one, {"label": label(name, one["surrogate"]), "linestyle": style, "color": colour}


def _axes() -> tuple[Figure, Axes]:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    axes.grid(alpha=0.3)
    return figure, axes


def _saved(path: Path, figure: Figure, axes: Axes) -> Path:
    from matplotlib import pyplot

    if axes.get_legend_handles_labels()[0]:  # without hits the plot of ages has no line
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def _against_budget(path: Path, summary: Summary, what: str, words: str) -> Path:
    budgets = summary["budgets"]
    figure, axes = _axes()
    at = [budget["states"] for budget in budgets]
    for name, (_, look) in zip(budgets[0]["policies"], _looks(budgets[0]["policies"]), strict=True):
        axes.plot(at, [budget["policies"][name][what] for budget in budgets], marker="o", **look)
    if what == "steps_saved" and all(budget["bound"] for budget in budgets):
        upper = [budget["bound"]["steps_saved"] for budget in budgets]
        axes.plot(at, upper, color="black", linestyle="--", marker="_", label="offline bound")
    if len(at) > 1:
        axes.set_xscale("log")
    axes.set(xlabel=f"budget, {budgets[0]['of']}", ylabel=words, ylim=(0, None))
    return _saved(path, figure, axes)


def _k_histogram(path: Path, budget: Budget) -> Path:
    """Plot the shares of requests by K, noise at the left."""
    policies = budget["policies"].values()
    ks = sorted({int(k) for one in policies for k in one["k_histogram"]})
    parts = {f"K = {k}": [one["k_histogram"].get(str(k), 0) / max(one["requests"], 1) for one in policies] for k in ks}
    figure, axes = _stacked(budget, parts, BAND)
    axes.set(xlabel=f"share of requests, {_room(budget)}", xlim=(0, 1))
    return _saved(path, figure, axes)


def _relations(path: Path, budget: Budget) -> Path:
    """Plot the share of steps saved by relation, re-rolls at the right."""
    policies = budget["policies"].values()
    parts = {
        words: [one["by_relation"][relation.value]["steps_saved"] for one in policies]
        for relation, words in reversed(RELATIONS.items())
    }
    figure, axes = _stacked(budget, parts, COLOURS)
    axes.set(xlabel=f"share of steps saved, {_room(budget)}")
    return _saved(path, figure, axes)


def _stacked(budget: Budget, parts: Mapping[str, Sequence[float]], colours: Sequence[str]) -> tuple[Figure, Axes]:
    """Return a bar for each policy, with its parts from left to right."""
    from matplotlib import pyplot

    names = [label(name, one["surrogate"]) for name, one in budget["policies"].items()]
    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.35 * len(names)), layout="constrained")
    left = [0.0] * len(names)
    for place, (words, part) in enumerate(parts.items()):
        axes.barh(names, part, left=left, color=colours[place % len(colours)], label=words)
        left = [so_far + more for so_far, more in zip(left, part, strict=True)]
    axes.invert_yaxis()
    return figure, axes


def _ages(path: Path, budget: Budget) -> Path:
    """Plot the share of hits by the age of their state (MoDM §A.1)."""
    figure, axes = _axes()
    for one, look in _looks(budget["policies"]):
        counts, total = one["reuse_age_histogram"], sum(one["reuse_age_histogram"])
        if total:
            axes.plot(AGES_S, np.cumsum(counts[: len(AGES_S)]) / total, marker=".", **look)
    axes.set_xscale("log")
    axes.set(xlabel="seconds since the state was made", ylabel=f"share of hits, {_room(budget)}", ylim=(0, 1))
    return _saved(path, figure, axes)


def _fairness(path: Path, budget: Budget) -> Path:
    """Plot the savings of users in ascending order."""
    figure, axes = _axes()
    for one, look in _looks(budget["policies"]):
        curve = one["fairness"]["curve"]
        axes.plot(np.linspace(0, 1, len(curve)), curve, **look)
    few = one["fairness"]["least_requests"]
    words = f"share of the users with at least {few} requests, {_room(budget)}"
    axes.set(xlabel=words, ylabel="share of its own steps that a user saves at most", xlim=(0, 1), ylim=(0, None))
    return _saved(path, figure, axes)


def _latencies(path: Path, budget: Budget) -> Path:
    """Plot the share of requests by latency, and the SLOs."""
    figure, axes = _axes()
    for one, look in _looks(budget["policies"]):
        curve = one["timed"]["curve"]
        axes.plot(curve, np.linspace(0, 1, len(curve)), **look)
    for limit in filter(None, one["timed"]["slo_s"].values()):
        axes.axvline(limit, color="black", linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set(xlabel="seconds", ylabel=f"share of requests, {_room(budget)}", ylim=(0, 1))
    return _saved(path, figure, axes)


def _room(budget: Budget) -> str:
    return f"{budget['states']:,} {budget['of']}"
