"""Plots of `bench.clip_codecs` in the form of FlexCache's Figs. 6, 14b, 19 and 20, and of the ratios' upper limits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.measuring.clip_codec_figures import PAPER
from bench.measuring.plotting import pyplot_or_none

SHOWN = ("here", "paper")


def plot(figures: Mapping[str, Any], path: Path) -> None:
    """Plot one row for each length of clips, and the limits below; nothing without clips."""
    pyplot = pyplot_or_none() if figures["lengths"] else None
    if pyplot is None:
        return
    lengths = figures["lengths"]
    figure, grid = pyplot.subplots(len(lengths) + 1, 4, figsize=(15, 3.2 * len(lengths) + 3.2), layout="constrained")
    for axes, one in zip(grid, lengths, strict=False):
        _length(axes, one)
    _limits(grid[-1][0], figures["arithmetic"])
    for axes in grid[-1][1:]:
        axes.axis("off")
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
    print(f"wrote {path}")


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
    axes[2].boxplot([one["codecs"]["here"]["extras"][k] for k in ks])
    axes[2].set_xticks(range(1, len(ks) + 1), ks)
    axes[2].set_title("extra frames, here (Fig. 19)", fontsize=9)
    for value in (PAPER["worst"], PAPER["mean"], PAPER["best"]):
        axes[3].axvline(value, color="grey", linestyle=":", linewidth=1)
    axes[3].set_title("share of clips up to a ratio (Fig. 20)\ndotted: worst, mean, best of the paper", fontsize=9)
    axes[3].set_xscale("log")
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
