"""The plots of `bench.replays.replay_shapes`: the papers' numbers in black, the replays' in colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.replays.shapes import FIG_9, GROWING, TABLE_1, UNLIMITED, Figures, Shape, at_least, over_stream, saved_at
from services.replay.results.figures import AGES_S

COLOURS = {
    "nirvana": "#d62728", "nirvana-without-predictor": "#d62728", "flexcache": "#1f77b4", "afterimage": "#2ca02c",
    "infinite": "#7f7f7f", "modm-cache-large": "#ff7f0e", "modm-cache-all": "#9467bd",
    "nirvana-infinite": "#8c564b", "gpt-cache": "#e377c2", "retrieval": "#bcbd22", "crs": "#17becf",
    "FIFO": "#ff7f0e", "LRU": "#9467bd", "LCBFU": "#d62728", "LRBU": "#1f77b4",
}  # fmt: skip
"""Colours of the policies, by our names and by FlexCache's."""
AGES = {60: "1 min", 600: "10 min", 3600: "1 h", 14_400: "4 h", 57_600: "16 h"}


def draw_savings(pyplot: Any, path: Path, paper: Figures, shape: Shape) -> None:
    """Plot NIRVANA Fig. 15, a column for each budget: h(K) above, potential and actual savings below."""
    ks, steps, budgets = paper["ks"], paper["steps"], list(shape.found)
    figure, axes = _grid(pyplot, 2, max(len(budgets), 1))
    for column, budget in enumerate(budgets):
        above, below = axes[0][column], axes[1][column]
        for place, (name, one) in enumerate(shape.found[budget].items()):
            look = {"color": COLOURS[name], "label": name}
            line = {"marker": "o", "markersize": 4, "linestyle": "--" if name == UNLIMITED else "-"}
            above.plot(ks, [at_least(one, k) for k in ks], **line, **look)
            width = 4.0 / len(shape.found[budget])
            at = [k - 2.0 + width * (place + 0.5) for k in ks]
            below.bar(at, [saved_at(one, k, shape.steps) for k in ks], width, **look)
        _marks(above, {int(k): share for k, share in paper["h"].items()}, f"NIRVANA's text, {paper['states']:,} states")
        _marks(below, {int(k): share for k, share in paper["saved_at"].items()})
        below.hlines([k / steps for k in ks], [k - 2.2 for k in ks], [k + 2.2 for k in ks], "black", label="potential")
        above.set(title=f"{budget:,} {shape.of}", ylim=(0, 1), xlim=(2, 28), xticks=ks)
        below.set(xlabel="K", ylim=(0, 0.55), xlim=(2, 28), xticks=ks)
    axes[0][0].set_ylabel("h(K): share of requests\nthat start at K or later")
    axes[1][0].set_ylabel("share of all steps\nsaved at K")
    _saved(pyplot, figure, axes, path)


def draw_stream(pyplot: Any, path: Path, paper: Figures, shape: Shape) -> None:
    """Plot NIRVANA Fig. 12, a column for each budget: hit rate, cost and throughput in tenths of the stream."""
    figure, axes = _grid(pyplot, 3, max(len(shape.found), 1))
    for column, (budget, found) in enumerate(shape.found.items()):
        for name, one in found.items():
            tenths = over_stream(one)
            at = np.arange(1, len(tenths) + 1) / len(tenths)
            hits, rates = (np.array(values) for values in zip(*tenths, strict=True))
            # both readings of NIRVANA have one colour; the line style distinguishes them
            style = "--" if name in GROWING else ":" if name == "nirvana-without-predictor" else "-"
            look = {"color": COLOURS[name], "linestyle": style, "marker": "."}
            look["label"] = name + (" (surrogate)" if one["surrogate"] else "")
            for row, values in enumerate((hits, 1 / rates, rates)):
                axes[row][column].plot(at, values, **look)
        for row, what in enumerate(("hit_rate", "cost", "throughput")):
            says = f"NIRVANA's text, {paper['states']:,} states, over its whole stream"
            _marks(axes[row][column], {1.0: paper[what]}, says if row == 0 else "_")
        axes[0][column].set_title(f"{budget:,} {shape.of}")
        axes[2][column].set_xlabel("share of the counted stream")
    words = ("share of requests that hit", "cost of an image\n(steps run, no cache = 1)", "throughput (no cache = 1)")
    for row, word in enumerate(words):
        axes[row][0].set(
            ylabel=word, ylim=(0 if row < 2 else 0.9, None)
        )  # after all columns are plotted, because they share the axis
    _saved(pyplot, figure, axes, path)


def draw_hit_rates(pyplot: Any, path: Path, paper: Figures, shape: Shape) -> None:
    """Plot MoDM Fig. 9: for each size a bar of each policy, darker where more steps are skipped."""
    figure, axes = _grid(pyplot, 1, 1, width=9.0)
    plot, sizes = axes[0][0], paper["sizes"]
    ks = sorted({int(k) for _, _, one in shape.rows() for k in one["k_histogram"]} - {0}, reverse=True)
    greens = pyplot.get_cmap("Greens")
    ticks, names, named = [], [], set()
    for group, size in enumerate(sizes):
        for place, (title, policy) in enumerate(FIG_9.items()):
            at, low = group * (len(FIG_9) + 1) + place, 0.0
            ticks.append(at)
            names.append(title)
            one = shape.found.get(size, {}).get(policy)
            if one is None:
                continue
            for k in ks:
                high = at_least(one, k)
                label = "_" if k in named else f"k = {k}"
                plot.bar(at, high - low, 0.8, low, color=greens(0.2 + 0.8 * k / max(ks)), label=label)
                named.add(k)
                low = high
        middle = group * (len(FIG_9) + 1) + (len(FIG_9) - 1) / 2
        plot.text(middle, 1.05, f"{size:,} {shape.of}", ha="center")
        if size not in shape.found:
            plot.text(middle, 0.4, "not replayed", ha="center")
    of_all = list(FIG_9).index("cache-all")
    says = {sizes.index(int(size)) * (len(FIG_9) + 1) + of_all: share for size, share in paper["hit_rate"].items()}
    _marks(plot, says, "MoDM's text")
    plot.set(ylabel="share of requests that hit", ylim=(0, 1.15), yticks=np.linspace(0, 1, 6))
    plot.set_xticks(ticks, names, rotation=30, ha="right")
    _saved(pyplot, figure, axes, path)


def draw_ages(pyplot: Any, path: Path, paper: Figures, shapes: Sequence[Shape]) -> None:
    """Plot MoDM §A.1: the share of hits by the age of the reused state or image, a column for each budget."""
    budgets = sorted({budget for shape in shapes for budget in shape.found})
    figure, axes = _grid(pyplot, len(shapes), max(len(budgets), 1))
    for row, shape in enumerate(shapes):
        for column, budget in enumerate(budgets):
            plot, found = axes[row][column], shape.found.get(budget, {})
            for name, one in found.items():
                counts = one["reuse_age_histogram"]
                shares = np.cumsum(counts[: len(AGES_S)]) / max(sum(counts), 1)
                look = {"color": COLOURS[name], "label": name + (" (surrogate)" if one["surrogate"] else "")}
                plot.plot(AGES_S, shares, marker=".", linestyle="--" if name == UNLIMITED else "-", **look)
            says = f"MoDM's text: over {100 * paper['at_least']:.0f} % within {paper['within_s'] / 3600:g} h"
            _marks(plot, {paper["within_s"]: paper["at_least"]}, says, marker="^")
            plot.set_xscale("log")
            plot.set_xticks(list(AGES), list(AGES.values()))
            plot.set_xticks([], minor=True)
            title = f"{budget:,} {shape.of}" + ("" if found else ", not replayed")
            plot.set(title=title, xlim=(AGES_S[0], AGES_S[-1]), ylim=(0, 1.03), xlabel="since it was made")
        axes[row][0].set_ylabel("share of hits")
    _saved(pyplot, figure, axes, path)


def draw_policies(pyplot: Any, path: Path, paper: Figures, shape: Shape, unlimited: int) -> None:
    """Plot FlexCache Table 1: hit rates above, savings below; the paper at the left, our two readings beside it."""
    shares = {budget: f"\n{100 * budget / unlimited:.1f} %" if unlimited else "" for budget in shape.found}
    names, titles = list(paper["hit_rate"]), ["FlexCache's Table 1", *(f"ours, {reading}" for reading in TABLE_1)]
    figure, axes = _grid(pyplot, 2, len(titles))
    for row, (what, words) in enumerate(
        {"hit_rate": "share of requests that hit", "steps_saved": "steps saved"}.items()
    ):
        panels = [{
            f"{gb:,} GB\n{100 * gb / paper['everything_gb']:.1f} %": [paper[what][name][place] for name in names]
            for place, gb in enumerate(paper["gb"])
        }]  # fmt: skip
        for policies in TABLE_1.values():
            panels.append({
                f"{budget:,}{shares[budget]}": [found.get(policies[name], {}).get(what, np.nan) for name in names]
                for budget, found in shape.found.items()
            })  # fmt: skip
        for column, panel in enumerate(panels):
            _bars(axes[row][column], names, panel)
            axes[row][column].set(ylim=(0, 1.0 if what == "hit_rate" else 0.32))
        axes[row][0].set_ylabel(words)
    for column, title in enumerate(titles):
        axes[0][column].set_title(title)
        axes[1][column].set_xlabel("room, and share of all states made" if column else "room, and share of all")
    _saved(pyplot, figure, axes, path)


def _bars(plot: Any, names: Sequence[str], groups: Mapping[str, Sequence[float]]) -> None:
    """Plot a group of bars for each size, with one bar for each name."""
    for place, name in enumerate(names):
        at = [group + (place - (len(names) - 1) / 2) * 0.2 for group in range(len(groups))]
        plot.bar(at, [values[place] for values in groups.values()], 0.2, color=COLOURS[name], label=name)
    plot.set_xticks(range(len(groups)), list(groups))


def _marks(plot: Any, shares: Mapping[float, float], label: str = "_", marker: str = "D") -> None:
    """Plot a paper's numbers as black markers."""
    plot.plot(list(shares), list(shares.values()), marker, color="black", markersize=7, zorder=5, label=label)


def _grid(pyplot: Any, rows: int, columns: int, width: float = 4.2) -> tuple[Any, Any]:
    return pyplot.subplots(
        rows, columns, figsize=(width * columns, 3.2 * rows + 0.6), layout="constrained", squeeze=False, sharey="row"
    )


def _saved(pyplot: Any, figure: Any, axes: Any, path: Path) -> None:
    """Save the figure with one common legend below."""
    known: dict[str, Any] = {}
    for plot in axes.flat:
        plot.grid(alpha=0.3)
        plot.set_axisbelow(True)
        known |= {label: handle for handle, label in zip(*plot.get_legend_handles_labels(), strict=True)}
    columns = 7 if sum(map(len, known)) < 80 else 4
    figure.legend(known.values(), known.keys(), loc="outside lower center", ncols=columns)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
