"""Write the parts of the page that only a replay on real models has."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Summary = Mapping[str, Any]
ROWS, COLUMNS = 8, 8
"""Most requests and policies on the sheet of images."""
NAMES = (
    "policy", "failed", "wall s", "processor s a request", "CLIP score", "of hits", "of misses",
    "hits against no cache", "95 % over users", "predictor let through", "its precision",
)  # fmt: skip


def is_real(summary: Summary) -> bool:
    """Return whether the replay generated images."""
    return bool(summary["settings"].get("real"))


def frames_of(summary: Summary) -> int:
    """Return the frames of each request; 1 for images, as in replays of earlier versions."""
    return int(summary["settings"]["real"].get("frames", 1))


def how(summary: Summary) -> str:
    """Describe models, workers and arrivals, as the end of a paragraph."""
    real, size = summary["settings"]["real"], summary["settings"]["real"]["size"]
    clips, kind = frames_of(summary) > 1, "clip" if frames_of(summary) > 1 else "image"
    made = f"Clips of {real['frames']} frames" if clips else "Images"
    sizes = "sizes as in the trace" if summary["settings"]["sizes_honoured"] else f"{size['width']}×{size['height']}"
    steps = "steps as in the trace" if summary["settings"]["steps"] is None else f"{summary['settings']['steps']} steps"
    offered = (
        "Requests were sent one at a time, so no request queued."
        if real["one_at_a_time"]
        else "Requests were sent at their arrivals, while others were still queued; latency counts from the arrival."
    )
    helped = f" and, for finished images, {real['small']}" if real["small"] else ""
    left = f" <b>Interrupted; not served: {html.escape(', '.join(summary['left']))}.</b>" if summary["left"] else ""
    return (
        f"{made} generated over gRPC by {html.escape(real['model'])} ({real['weights_hash']}){html.escape(helped)}: "
        f"{sizes}, {steps}, guidance {real['guidance']:g}, {real['workers']} worker(s) "
        f"with up to {real['max_rows']} rows. Each policy had an Afterimage of its own, warm and with an empty cache, "
        f"and the same noise for the same request. {offered} One {kind} of {real['alone_steps']} steps alone took "
        f"{real['alone_s']:.3g} s (the median over policies); SLOs are multiples of it, at the request's T."
        f"{' The CLIP score of a clip is the mean over its frames.' if clips else ''}{left}"
    )


def rows(budget: Mapping[str, Any]) -> list[list[str]]:
    """Return one row per policy, in the order of NAMES."""
    return [_row(name, one) for name, one in budget["policies"].items()]


def _row(name: str, policy: Mapping[str, Any]) -> list[str]:
    real, clip = policy["real"], policy["real"]["clip"]
    against, gate = real.get("clip_against", {}).get("hits"), real["predictor"] or {}
    return [
        html.escape(name), f"{real['failed']:,}", f"{real['wall_s']:,.1f}", f"{real['processor_s_per_request']:.2f}",
        *(dashed(clip[group], ".4f") for group in ("all", "hits", "misses")),
        dashed(against and against["mean"], "+.4f"),
        "{:+.4f} – {:+.4f}".format(*against["95"]) if against else "–",
        dashed(gate.get("let_through"), ","), dashed(gate.get("precision"), ".1%"),
    ]  # fmt: skip


def dashed(value: float | None, form: str) -> str:
    """Format a figure, or return a dash for None."""
    return "–" if value is None else format(value, form)


def notes(summary: Summary) -> str:
    """List figures with another meaning in this mode, notes of plans, and errors."""
    lines = [f"<code>{html.escape(key)}</code>: {html.escape(words)}" for key, words in summary["not_here"].items()]
    for budget in summary["budgets"]:
        for name, one in budget["policies"].items():
            counts = {**one["real"]["errors"], **one["real"]["notes"]}
            lines += [html.escape(f"{name}, {count:,} times: {words}") for words, count in counts.items()]
    return "<ul>" + "".join(f"<li>{line}</li>" for line in lines) + "</ul>"


def players(folder: Path, summary: Summary, decisions: Mapping[str, npt.NDArray[Any]]) -> str:
    """Return a table of requests that hit under some policy, as clips of every policy with their K; empty for images.

    The clips stay files of the folder, beside the page: browsers play animated PNGs.
    """
    names, requests = _chosen(folder, summary)
    if frames_of(summary) == 1 or not requests:
        return ""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    lines = [f"<h2>Clips</h2><table><tr><th>prompt</th>{head}</tr>"]
    for one in requests:
        cells = "".join(
            f'<td><img src="{html.escape(_place(summary, name, one["request"]))}" alt="" '
            f'style="width:128px;image-rendering:pixelated"><br>{_k(summary, decisions, name, one["request"])}</td>'
            for name in names
        )
        lines.append(f"<tr><td>{html.escape(one['prompt'])}</td>{cells}</tr>")
    return "\n".join([*lines, "</table>"])


def sheet(folder: Path, summary: Summary, decisions: Mapping[str, npt.NDArray[Any]]) -> list[Path]:
    """Write pictures.png: requests that hit under some policy, as images of every policy with their K.

    Returns no path if no request hit, and for clips. Raises ImportError without matplotlib.
    """
    names, here = _chosen(folder, summary)
    if frames_of(summary) > 1 or not here:
        return []
    from matplotlib import pyplot

    size = 1.5 * len(names) + 1.5, 1.75 * len(here)
    figure, axes = pyplot.subplots(len(here), len(names), figsize=size, layout="constrained", squeeze=False)
    for line, one in zip(axes, here, strict=True):
        for axis, name in zip(line, names, strict=True):
            axis.imshow(pyplot.imread(folder / _place(summary, name, one["request"])), interpolation="nearest")
            axis.set(xticks=[], yticks=[])
            axis.set_title(_k(summary, decisions, name, one["request"]), fontsize=8)
        words = textwrap.shorten(one["prompt"], 120, placeholder=" …")
        line[0].set_ylabel(textwrap.fill(words, 20), fontsize=7, rotation=0, ha="right", va="center")
    for axis, name in zip(axes[-1], names, strict=True):
        axis.set_xlabel(name, fontsize=8)
    path = folder / "pictures.png"
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return [path]


def shown(starts: Mapping[str, npt.NDArray[Any]]) -> Sequence[int]:
    """Choose up to ROWS counted requests that hit under some policy, evenly spread; `starts` has each policy's K."""
    hit = np.flatnonzero(np.any([made > 0 for made in starts.values()], axis=0))
    places = np.linspace(0, len(hit) - 1, min(ROWS, len(hit))).round().astype(int)
    return [int(row) for row in hit[places]]


def _chosen(folder: Path, summary: Summary) -> tuple[list[str], list[Mapping[str, Any]]]:
    """Return the policies and the requests to show: those whose results are all here."""
    names = list(summary["budgets"][0]["policies"])[:COLUMNS]
    here = [
        one
        for one in summary["shown"]
        if all((folder / _place(summary, name, one["request"])).is_file() for name in names)
    ]
    return names, here


def _place(summary: Summary, name: str, request: int) -> str:
    """Return the path of a result in the replay's folder."""
    return f"{summary['pictures'][name]}/{request:06d}.png"


def _k(summary: Summary, decisions: Mapping[str, npt.NDArray[Any]], name: str, request: int) -> str:
    """Return the start step of a counted request at the first budget in words, with its T where the trace names it."""
    row = request - summary["trace"]["warmup"]
    k = decisions[f"{summary['budgets'][0]['states']}/{name}"][row]
    return f"K = {k} of {decisions['steps'][row]}" if "steps" in decisions else f"K = {k}"
