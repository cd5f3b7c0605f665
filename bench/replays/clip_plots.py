"""Plots of bench.replays.clip_replays: one panel for each figure of FlexCache, the paper's numbers in black."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.measuring.plotting import pyplot_or_none

COLOURS = {
    "nirvana-video": "#d62728", "nirvana-video-keyframes": "#ff7f0e", "flexcache-video-whole": "#9467bd",
    "flexcache-video": "#1f77b4", "afterimage-video": "#2ca02c", "afterimage-video-residual": "#8c564b",
    "FIFO": "#ff7f0e", "LRU": "#9467bd", "LCBFU": "#d62728", "LRBU": "#1f77b4",
}  # fmt: skip
Found = Mapping[str, Any]
GB = 1e9


def plot(found: Found, path: Path) -> None:
    """Write all panels into one PNG; without matplotlib, print a line instead."""
    pyplot = pyplot_or_none()
    if pyplot is None:
        return
    panels: list[Callable[[Any, Found], None]] = [fig_4, fig_7, fig_12, fig_13, fig_16, fig_17, fig_18, fig_22, table_1]
    figure, axes = pyplot.subplots(3, 3, figsize=(16, 12), layout="constrained")
    for panel, axis in zip(panels, axes.flat, strict=True):
        panel(axis, found)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    print(f"wrote {path}")


def at_full(found: Found) -> Found:
    """Return the policies at the largest budget."""
    ones: Found = found["by_room"][str(found["room"])]
    return ones


def fig_4(axis: Any, found: Found) -> None:
    one = found["fig_4"]
    for name, what in (("clips_bytes", f"clips of {found['requests']['frames']} frames"), ("images_bytes", "images")):
        axis.plot([size / GB for size in one[name]], one["steps_saved"], ".-", label=what)
    paper = found["paper"]["fig_4"]
    axis.set(
        title="Fig. 4: bytes of a growing cache (whole prompts, fp16)", xlabel="GB", xscale="log", ylabel="steps saved"
    )
    axis.axhline(paper["saved"], color="black", ls=":", label=f"paper: {paper['saved']:.1%} at {paper['clips_tb']} TB")
    axis.legend()


def fig_7(axis: Any, found: Found) -> None:
    one = found["fig_7"]
    for name in ("whole", "object", "background", "pair", "best"):
        axis.plot(one["levels"], one[name], "o-" if name in ("whole", "best") else ".--", label=name)
    axis.set(title="Fig. 7: nearest earlier prompt above a similarity", xlabel="similarity", ylim=(0, 1.03))
    axis.set_ylabel("share of requests")
    axis.legend()


def fig_12(axis: Any, found: Found) -> None:
    for top, parts in found["fig_12"].items():
        axis.plot(range(1, len(parts) + 1), parts, ".-", label=f"top {float(top):.0%}")
    axis.set(title="Fig. 12: savings of the hottest prompts of the first tenth", xlabel="tenth", ylim=(0, None))
    axis.set_ylabel("of the first tenth's")
    axis.legend()


def fig_13(axis: Any, found: Found) -> None:
    colours = {
        "states": "#7f7f7f",
        "first": "#1f77b4",
        "differences": "#ff7f0e",
        "extra": "#2ca02c",
        "masks": "#d62728",
    }
    named = set[str]()
    for place, parts in enumerate(found["fig_13"].values()):
        low = 0.0
        for name, size in parts.items():
            axis.bar(place, size, bottom=low, color=colours[name], label=None if name in named else name)
            named.add(name)
            low += size
        axis.text(place, low, f"{5 / low:.2f}×", ha="center", va="bottom")
    axis.set_xticks(range(len(found["fig_13"])), list(found["fig_13"]))
    title = f"Fig. 13: five states of a clip (paper: {found['paper']['fig_13']['ratio']}×)"
    axis.set(title=title, ylabel="fp16 states", ylim=(0, 5.6))
    axis.legend()


def fig_16(axis: Any, found: Found) -> None:
    for name in ("nirvana-video", "flexcache-video", "afterimage-video"):
        over = at_full(found)[name]["throughput_over_time"]
        axis.plot(range(1, len(over) + 1), over, ".-", color=COLOURS[name], label=name)
    more = at_full(found)["flexcache-video"]["throughput"] / at_full(found)["nirvana-video"]["throughput"]
    title = f"Fig. 16: throughput; FlexCache / NIRVANA {more:.2f} (paper {found['paper']['fig_16']['over_nirvana']})"
    axis.set(title=title, xlabel="thousand requests after the fill", ylabel="no cache = 1")
    axis.legend()


def fig_17(axis: Any, found: Found) -> None:
    names = ["nirvana-video", "nirvana-video-keyframes", "flexcache-video-whole", "flexcache-video", "afterimage-video"]
    labels = ["latents", "+ compression", "+ LRBU,\nhits kept", "+ pairs", "ours"]
    bars = [at_full(found)[name]["throughput"] for name in names]
    axis.bar(range(len(names)), bars, color=[COLOURS[name] for name in names])
    for place, bar in enumerate(bars):
        axis.text(place, bar, f"{bar:.2f}", ha="center", va="bottom")
    paper = found["paper"]["fig_17"]
    axis.plot([0, 1, 3], list(paper.values()), "k*", label="paper")
    axis.set_xticks(range(len(names)), labels)
    axis.set(title="Fig. 17: throughput by stage", ylabel="no cache = 1", ylim=(0.8, None))
    axis.legend()


def fig_18(axis: Any, found: Found) -> None:
    names = ("nirvana-video", "flexcache-video", "afterimage-video")
    ks = sorted({int(k) for name in names for k in at_full(found)[name]["ks"]})
    for place, name in enumerate(names):
        shares = [at_full(found)[name]["ks"].get(str(k), 0.0) for k in ks]
        axis.bar([k + 1.3 * (place - 1) for k in ks], shares, 1.3, color=COLOURS[name], label=name)
    paper = found["paper"]["fig_18"]
    axis.plot([0, paper["most_common_k"]], [1 - paper["hit_rate"], paper["at_most_common"]], "k*", label="paper")
    axis.set(title="Fig. 18: steps skipped of 50", xlabel="K", ylabel="share of requests", xticks=ks)
    axis.legend()


def fig_22(axis: Any, found: Found) -> None:
    costs = found["fig_22"]
    names = [name for name in ("no cache", "nirvana-video", "flexcache-video", "afterimage-video") if name in costs]
    axis.bar(range(len(names)), [costs[name] for name in names], color=["#7f7f7f", *(COLOURS[n] for n in names[1:])])
    for place, name in enumerate(names):
        axis.text(place, costs[name], f"−{1 - costs[name] / costs['no cache']:.1%}", ha="center", va="bottom")
    axis.set_xticks(range(len(names)), [name.removesuffix("-video") for name in names])
    paper = found["paper"]["fig_22"]
    said = f"paper: −{paper['nirvana_saves']:.1%}, −{paper['flexcache_saves']:.0%}"
    axis.set(title=f"Fig. 22: dollars a clip ({said})", ylim=(0, 1.1 * max(costs.values())))


def table_1(axis: Any, found: Found) -> None:
    shares = [room / found["room"] for room in found["rooms"]]
    for name in ("FIFO", "LRU", "LCBFU", "LRBU"):
        saved = [ones[name]["steps_saved"] for ones in found["table_1"].values()]
        axis.plot(shares, saved, "o-", color=COLOURS[name], label=name)
        paper = found["paper"]["table_1"]
        axis.plot([gb / paper["everything_gb"] for gb in paper["gb"]], paper["steps_saved"][name], "*:", color="black",
                  alpha=0.4, label="paper" if name == "LRBU" else None)  # fmt: skip
    ours = [ones["afterimage-video"]["steps_saved"] for ones in found["by_room"].values()]
    axis.plot(shares, ours, "s--", color=COLOURS["afterimage-video"], label="ours")
    axis.set(title="Table 1: steps saved by eviction", xlabel="share of all states' bytes", xscale="log")
    axis.legend()
