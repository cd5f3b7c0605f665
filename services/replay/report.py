"""The folder that a replay leaves: summary.json, plots, and one page that opens from disk."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from services.replay.compare import DECISIONS, label
from services.replay.figures import AGES_S

COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf")
BAND = ("#d9d9d9", "#c6dbef", "#9ecae1", "#6baed6", "#3182bd", "#08519c", "#fdae6b", "#e6550d")
QUANTILES = ("p50", "p95", "p99")
HEAD = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Replay</title><style>
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:1rem 0}td,th{padding:.25rem .7rem;border-bottom:1px solid #ddd;text-align:right}
td:first-child,th:first-child{text-align:left}img{max-width:100%}caption{text-align:left;font-weight:600}
pre{background:#f6f6f6;padding:1rem;overflow-x:auto}</style>"""

Summary = Mapping[str, Any]
Budget = Mapping[str, Any]


def write(folder: Path, summary: Summary, decisions: Mapping[str, npt.NDArray[Any]]) -> list[Path]:
    """summary.json, decisions.npz, the plots (where matplotlib is installed) and index.html; the files written."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "summary.json"
    text.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    arrays: dict[str, Any] = dict(decisions)
    np.savez_compressed(folder / DECISIONS, **arrays)
    try:
        pictures = plots(folder, summary)
    except ImportError:
        pictures = []
    page = folder / "index.html"
    page.write_text(page_of(summary, pictures), encoding="utf-8")
    return [text, folder / DECISIONS, *pictures, page]


def page_of(summary: Summary, pictures: Sequence[Path]) -> str:
    """One page with everything in it."""
    trace, encoder = summary["trace"], summary["encoder"]
    parts = [
        HEAD,
        f"<h1>Replay of {html.escape(trace['name'])}</h1>",
        f"<p>{trace['requests']:,} requests of {trace['users']:,} users, the first {trace['warmup']:,} uncounted; "
        f"{html.escape(trace['arrivals'])}. Prompts compared by {html.escape(encoder['name'])} "
        f"({encoder['hash']}). {html.escape(summary['thresholds'])} {_how(summary['settings'])}</p>",
    ]
    parts += [_table(budget) for budget in summary["budgets"]]
    parts += [timed_table(budget) for budget in summary["budgets"] if _timed(budget)]
    parts += [_image(path) for path in pictures]
    about = {name: summary[name] for name in ("settings", "table", "timings", "machine", "versions")}
    parts.append(f"<h2>Settings, machine, versions</h2><pre>{html.escape(json.dumps(about, indent=1))}</pre>")
    return "\n".join(parts) + "</html>\n"


def _how(settings: Mapping[str, Any]) -> str:
    """What was replaced."""
    fleet, stand_in = settings["fleet"], settings["surrogate"]
    drawn = (
        f"No picture was drawn: {fleet['workers']} workers with the measured latency of "
        f"{html.escape(fleet['profile']['model'])}, {fleet['max_rows']} rows each, in virtual time; planning, fetching "
        "and storing take none."
        if fleet
        else "Decisions alone: no picture was drawn, and each request is kept before the next one comes."
    )
    if stand_in is None:
        return drawn
    check = stand_in["check"]
    return (
        f"{drawn} Similarities of prompts to pictures are a <b>surrogate</b>, made from similarities of prompts. "
        f"Fitted on {stand_in['pictures'] // 2} pictures of {html.escape(stand_in['model'])}, it allows on as many "
        f"others what the pictures allow in {check['same_level']:.0%} of lookups, and is within one level in "
        f"{check['within_one_level']:.0%}."
    )


def _timed(budget: Budget) -> bool:
    return any(one["timed"] for one in budget["policies"].values())


def timed_table(budget: Budget) -> str:
    """Latency, queueing and SLO of every policy, in virtual time."""
    names = ("policy", "served/s", "p50 s", "p95 s", "p99 s", "queued p50 s", "queued p99 s", "longest queue", "busy",
             "rows a batch")  # fmt: skip
    first = next(one["timed"] for one in budget["policies"].values() if one["timed"])
    slo = [f"within {times}× alone ({limit:.3g} s)" for times, limit in first["slo_s"].items()]
    rows = []
    for name, policy in budget["policies"].items():
        one = policy["timed"]
        rows.append([
            html.escape(_shown(name, policy)), f"{one['served_per_s']:.2f}",
            *(f"{one['latency_s'][q]:.2f}" for q in QUANTILES),
            f"{one['queued_s']['p50']:.2f}", f"{one['queued_s']['p99']:.2f}", f"{one['longest_queue']:,}",
            f"{one['busy']:.0%}", f"{one['rows']:.1f}", *(f"{share:.1%}" for share in one["slo"].values()),
        ])  # fmt: skip
    limit = f"{budget['states']:,} {budget['of']}: {first['offered_per_s']:.3g} requests a second in virtual time"
    return _html(limit, (*names, *slo), rows)


def _html(caption: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{name}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><caption>{caption}</caption><tr>{head}</tr>{body}</table>"


def _table(budget: Budget) -> str:
    names = (
        "policy", "steps saved", "95 % over users", "of the bound", "hits", "own user's", "evicted states",
        "states held", "MB held", "reuse age p50, s", "decisions/s",
    )  # fmt: skip
    size = f" ({budget['max_bytes'] / 1e6:,.1f} MB)" if budget["max_bytes"] else ""
    return _html(f"{budget['states']:,} {budget['of']}{size}", names, rows_of(budget))


def rows_of(budget: Budget) -> list[list[str]]:
    """The budget's table in words: one row per policy, then the bounds."""
    upper = (budget["bound"] or {}).get("steps_saved")
    rows = []
    for name, one in budget["policies"].items():
        share = f"{one['steps_saved'] / upper:.1%}" if upper and one["bounded"] else "–"
        age = one["reuse_age_s"].get("0.5")
        rows.append([
            html.escape(f"{_shown(name, one)}: {one['title']}"), f"{one['steps_saved']:.2%}",
            "{:.2%} – {:.2%}".format(*one["steps_saved_95"]), share, f"{one['hit_rate']:.2%}",
            f"{one['own_user']:.1%}", f"{one['evictions']:,}", f"{one['states']:,}", f"{one['bytes'] / 1e6:,.1f}",
            "–" if age is None else f"{age:,.0f}", f"{one['decisions_per_s']:,.0f}",
        ])  # fmt: skip
    if upper:
        empty = [""] * 7
        rows.append(["offline bound within the budget", f"{upper:.2%}", "", "100.0%", *empty])
        rows.append(["offline bound of any size", f"{budget['bound']['infinite']:.2%}", "", "", *empty])
    return rows


def _shown(name: str, figures: Mapping[str, Any]) -> str:
    return label(name, figures["surrogate"])


def _image(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<p><img alt="{path.stem}" src="data:image/png;base64,{data}"></p>'


def plots(folder: Path, summary: Summary) -> list[Path]:
    """The PNGs; ImportError without matplotlib."""
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
        if _timed(budget):
            made.append(_latencies(folder / f"latency_{budget['states']}.png", budget))
        made.append(_ages(folder / f"reuse_age_{budget['states']}.png", budget))
    return made


def _against_budget(path: Path, summary: Summary, what: str, words: str) -> Path:
    from matplotlib import pyplot

    budgets = summary["budgets"]
    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    at = [budget["states"] for budget in budgets]
    for number, name in enumerate(budgets[0]["policies"]):
        values = [budget["policies"][name][what] for budget in budgets]
        style = ("-", "--", ":", "-.")[number // len(COLOURS) % 4]
        shown = _shown(name, budgets[0]["policies"][name])
        axes.plot(at, values, marker="o", linestyle=style, color=COLOURS[number % len(COLOURS)], label=shown)
    if what == "steps_saved" and all(budget["bound"] for budget in budgets):
        upper = [budget["bound"]["steps_saved"] for budget in budgets]
        axes.plot(at, upper, color="black", linestyle="--", marker="_", label="offline bound")
    if len(at) > 1:
        axes.set_xscale("log")
    axes.set(xlabel=f"budget, {budgets[0]['of']}", ylabel=words, ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def _k_histogram(path: Path, budget: Budget) -> Path:
    """Requests by K, from noise at the left, as shares."""
    from matplotlib import pyplot

    policies = budget["policies"]
    ks = sorted({int(k) for one in policies.values() for k in one["k_histogram"]})
    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.35 * len(policies)), layout="constrained")
    left, names = [0.0] * len(policies), [_shown(name, one) for name, one in policies.items()]
    for place, k in enumerate(ks):
        part = [one["k_histogram"].get(str(k), 0) / max(one["requests"], 1) for one in policies.values()]
        axes.barh(names, part, left=left, color=BAND[place % len(BAND)], label=f"K = {k}")
        left = [so_far + more for so_far, more in zip(left, part, strict=True)]
    axes.invert_yaxis()
    axes.set(xlabel=f"share of requests, {budget['states']:,} {budget['of']}", xlim=(0, 1))
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def _ages(path: Path, budget: Budget) -> Path:
    """Share of the hits whose state is at most so old (MoDM §A.1)."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    for number, (name, one) in enumerate(budget["policies"].items()):
        counts, total = one["reuse_age_histogram"], sum(one["reuse_age_histogram"])
        if total:
            shares = [sum(counts[: place + 1]) / total for place in range(len(AGES_S))]
            style = ("-", "--", ":", "-.")[number // len(COLOURS) % 4]
            colour, shown = COLOURS[number % len(COLOURS)], _shown(name, one)
            axes.plot(AGES_S, shares, marker=".", linestyle=style, color=colour, label=shown)
    axes.set_xscale("log")
    axes.set(
        xlabel="seconds since the state was made",
        ylabel=f"share of hits, {budget['states']:,} {budget['of']}",
        ylim=(0, 1),
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def _latencies(path: Path, budget: Budget) -> Path:
    """Share of the requests served within so many seconds of virtual time, and the SLOs."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    for number, (name, one) in enumerate(budget["policies"].items()):
        style = ("-", "--", ":", "-.")[number // len(COLOURS) % 4]
        shares = np.linspace(0, 1, len(one["timed"]["curve"]))
        colour, shown = COLOURS[number % len(COLOURS)], _shown(name, one)
        axes.plot(one["timed"]["curve"], shares, linestyle=style, color=colour, label=shown)
    for limit in one["timed"]["slo_s"].values():
        axes.axvline(limit, color="black", linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set(xlabel="seconds", ylabel=f"share of requests, {budget['states']:,} {budget['of']}", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path
