"""Plots of `bench.clip_codecs` in the form of FlexCache's Figs. 6, 14, 19, 20 and 21, and the limits of the ratios."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.measuring.clip_codec_figures import PAPER
from bench.measuring.plotting import pyplot_or_none

SHOWN = ("here", "paper")
THRESHOLDS = {0.9: "paper .9", 0.95: "paper .95", 0.99: "paper"}
"""Cosine from which frames are merged → key frames (Fig. 14a)."""
LOOKS = {"fidelity": "CLIP score", "attributes": "right attributes", "sharpness": "sharpness", "contrast": "contrast"}


def plot(figures: Mapping[str, Any], path: Path) -> None:
    """Plot one row for each length of clips with the limits below, or the quality by codec; nothing without either."""
    drawn = _lengths if figures["lengths"] else _quality if figures["quality"] else None
    pyplot = pyplot_or_none() if drawn else None
    if drawn is None or pyplot is None:
        return
    figure = drawn(pyplot, figures)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
    print(f"wrote {path}")


def _lengths(pyplot: Any, figures: Mapping[str, Any]) -> Any:
    lengths = figures["lengths"]
    figure, grid = pyplot.subplots(len(lengths) + 1, 4, figsize=(15, 3.2 * len(lengths) + 3.2), layout="constrained")
    for axes, one in zip(grid, lengths, strict=False):
        _length(axes, one)
    _limits(grid[-1][0], figures["arithmetic"])
    _thresholds(grid[-1][1:3], lengths)
    _loss(grid[-1][3], lengths)
    return figure


def _quality(pyplot: Any, figures: Mapping[str, Any]) -> Any:
    """Plot each measure by codec and K, with its one-sided 95 % bound."""
    rows = figures["quality"]
    ks, codecs = sorted({row["k"] for row in rows}), list(dict.fromkeys(row["codec"] for row in rows))
    figure, grid = pyplot.subplots(1, len(LOOKS), figsize=(15, 4), layout="constrained", sharey=True)
    for axes, (name, title) in zip(grid, LOOKS.items(), strict=True):
        for at, k in enumerate(ks):
            found = [
                (codecs.index(row["codec"]), one) for row in rows if row["k"] == k and (one := _measured(row, name))
            ]
            places = [place + 0.8 * (at - (len(ks) - 1) / 2) / len(ks) for place, _ in found]
            values = [one["value"] for _, one in found]
            down = [one["value"] - (one["value"] if one["bound"] is None else one["bound"]) for _, one in found]
            axes.errorbar(places, values, yerr=[down, [0] * len(down)], fmt="o", capsize=3, label=f"K = {k}")
        axes.axhline(1, color="grey", linestyle=":", linewidth=1)
        axes.set_xticks(range(len(codecs)), codecs, rotation=60)
        axes.set_title(f"{title}, fp16 = 1 ({rows[0]['pairs']} pairs)", fontsize=9)
    grid[0].legend()
    return figure


def _measured(row: Mapping[str, Any], name: str) -> Any:
    return row["attributes_of_fp16"] if name == "attributes" else row["of_fp16"][name]


def _length(axes: Any, one: Mapping[str, Any]) -> None:
    ks, title = one["ks"], f"{one['clips']} clips of {one['frames']} frames"
    image = axes[0].imshow(one["difference_similarity"], vmin=0.8, vmax=1)
    axes[0].figure.colorbar(image, ax=axes[0])
    axes[0].set_xticks(range(len(ks)), ks)
    axes[0].set_yticks(range(len(ks)), ks)
    axes[0].set_title(f"{title}\nsimilarity of differences (Fig. 6)", fontsize=9)
    for name in SHOWN:
        codec = one["codecs"][name]
        axes[1].plot(ks, [100 * codec["redundant"][k] for k in ks], marker="o", label=name)
        ratios = codec["ratios"]
        axes[3].plot(ratios, [(at + 1) / len(ratios) for at in range(len(ratios))], drawstyle="steps-post", label=name)
    axes[1].set_title("redundant frames, % (Fig. 14b)", fontsize=9)
    for at, (name, colour) in enumerate(zip(SHOWN, ("tab:blue", "tab:orange"), strict=True)):
        places = [place + 0.4 * at - 0.2 for place in range(len(ks))]
        axes[2].boxplot(
            [one["codecs"][name]["extras"][k] for k in ks], positions=places, widths=0.3, manage_ticks=False,
            **{part: {"color": colour} for part in ("boxprops", "whiskerprops", "capprops", "medianprops")},
        )  # fmt: skip
    axes[2].set_xticks(range(len(ks)), ks)
    axes[2].set_title("extra frames (Fig. 19)", fontsize=9)
    for value in (PAPER["worst"], PAPER["mean"], PAPER["best"]):
        axes[3].axvline(value, color="grey", linestyle=":", linewidth=1)
    axes[3].set_title("share of clips up to a ratio (Fig. 20)\ndotted: worst, mean, best of the paper", fontsize=9)
    axes[3].set_xscale("log", base=2)
    axes[3].set_xlim(0.9, 20)
    for each in axes[:3]:
        each.set_xlabel("K")
    axes[1].set_xticks(ks)
    axes[1].legend()
    axes[3].legend()


def _limits(axes: Any, rows: Any) -> None:
    for name in ("independent", "freenoise"):
        axes.plot([row["frames"] for row in rows], [row[name] for row in rows], marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlabel("frames")
    axes.set_title("highest ratio of five steps, by kind of noise", fontsize=9)
    axes.legend()


def _thresholds(both: Any, lengths: Any) -> None:
    """Plot what the threshold of a merge costs and brings (Fig. 14a): the cosine at the last K, and the ratio."""
    last = lengths[0]["ks"][-1]
    for one in lengths:
        codecs = [one["codecs"][name] for name in THRESHOLDS.values()]
        both[0].plot(
            list(THRESHOLDS), [codec["cosine"][last] for codec in codecs], "o-", label=f"{one['frames']} frames"
        )
        both[1].plot(
            list(THRESHOLDS), [codec["ratio"]["mean"] for codec in codecs], "o-", label=f"{one['frames']} frames"
        )
    both[0].set_title(f"cosine at K = {last} by threshold (Fig. 14a)", fontsize=9)
    both[1].set_title("mean ratio by threshold", fontsize=9)
    for axes in both:
        axes.set_xticks(list(THRESHOLDS))
        axes.set_xlabel("cosine from which frames are merged")
        axes.legend()


def _loss(axes: Any, lengths: Any) -> None:
    """Plot the cosine after each kind of compression, of the paper's rule (Fig. 21)."""
    for one in lengths:
        codec, frames = one["codecs"]["paper"], one["frames"]
        for name, title, line in (("repeated", "within steps", ".--"), ("cosine", "and between steps", "o-")):
            axes.plot(one["ks"], [codec[name][k] for k in one["ks"]], line, label=f"{frames} frames, {title}")
    axes.axhline(0.995, color="grey", linestyle=":", linewidth=1)
    axes.set_title("cosine, paper's rule (Fig. 21; dotted: .995)", fontsize=9)
    axes.set_xlabel("K")
    axes.legend(fontsize=7)
