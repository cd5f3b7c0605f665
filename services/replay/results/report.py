"""Write the folder of a replay: summary.json, plots, and one page that opens from disk."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from services.replay.results.compare import DECISIONS, label
from services.replay.results.plots import plots
from services.replay.results.real_page import NAMES, dashed, frames_of, how, is_real, notes, players, rows, sheet

QUANTILES = ("p50", "p95", "p99")
AGES = ("0.1", "0.5", "0.9", "0.99")
"""Quantiles of `reuse_age_s` on the page."""
HEAD = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Replay</title><style>
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:1rem 0}td,th{padding:.25rem .7rem;border-bottom:1px solid #ddd;text-align:right}
td:first-child,th:first-child{text-align:left}img{max-width:100%}caption{text-align:left;font-weight:600}
pre{background:#f6f6f6;padding:1rem;overflow-x:auto}</style>"""

PREDICTED = ("precision", "recall", "AUC")
ABOUT = ("settings", "table", "taken_over", "timings", "machine", "versions", "at")

Summary = Mapping[str, Any]
Budget = Mapping[str, Any]


def write(folder: Path, summary: Summary, decisions: Mapping[str, npt.NDArray[Any]]) -> list[Path]:
    """Write summary.json, decisions.npz, index.html, and plots if matplotlib is installed; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "summary.json"
    text.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    arrays: dict[str, Any] = dict(decisions)
    np.savez_compressed(folder / DECISIONS, **arrays)
    try:
        pictures = plots(folder, summary)
        pictures += sheet(folder, summary, decisions) if is_real(summary) else []
    except ImportError:
        pictures = []
    page = folder / "index.html"
    clips = players(folder, summary, decisions) if is_real(summary) else ""
    page.write_text(page_of(summary, pictures, clips), encoding="utf-8")
    return [text, folder / DECISIONS, *pictures, page]


def page_of(summary: Summary, pictures: Sequence[Path], clips: str = "") -> str:
    """Return the whole page, with its plots inside. clips: the table of clips, which are files beside the page."""
    trace, encoder = summary["trace"], summary["encoder"]
    parts = [
        HEAD,
        f"<h1>Replay of {html.escape(trace['name'])}</h1>",
        f"<p>{trace['requests']:,} requests of {trace['users']:,} users, the first {trace['warmup']:,} uncounted; "
        f"{html.escape(trace['arrivals'])}. Prompts compared by {html.escape(encoder['name'])} "
        f"({encoder['hash']}). {html.escape(summary['thresholds'])} {_drawn(summary)}</p>",
    ]
    parts += [_table(budget) for budget in summary["budgets"]]
    parts.append(f"<p>{_intervals(trace)}</p>")
    parts += [timed_table(budget) for budget in summary["budgets"] if _timed(budget)]
    if is_real(summary):
        title = f"{'Clips' if frames_of(summary) > 1 else 'Images'} and processor time"
        parts += [_html(title, *told(NAMES, rows(budget))) for budget in summary["budgets"]]
        parts += [notes(summary), clips]
    parts += sections(summary["budgets"])
    parts += ["<h2>Plots</h2>", *(_image(path) for path in pictures)] if pictures else []
    about = {name: summary[name] for name in ABOUT}
    parts.append(
        f"<h2>Settings, machine, versions</h2><pre>{html.escape(json.dumps(about, indent=1, ensure_ascii=False))}</pre>"
    )
    return "\n".join(parts) + "</html>\n"


def _intervals(trace: Mapping[str, Any]) -> str:
    """Describe the intervals of the page."""
    return (
        "Intervals are 95 % over resampled users, each with all its requests, under this one arrival pattern "
        f"({html.escape(trace['arrivals'])}). They do not include the effect of another pattern; replay with another "
        "seed to see that effect. Latencies have no intervals."
    )


def _drawn(summary: Summary) -> str:
    """Describe the mode of the replay."""
    return how(summary) if is_real(summary) else _how(summary["settings"])


def _how(settings: Mapping[str, Any]) -> str:
    """Describe virtual time, own T and the surrogate, if the replay uses them."""
    fleet, stand_in = settings["fleet"], settings["surrogate"]
    drawn = (
        f"No image was generated: {fleet['workers']} workers with the measured latency of "
        f"{html.escape(fleet['profile']['model'])}, {fleet['max_rows']} rows each, in virtual time; planning, fetching "
        "and storing take no time."
        if fleet
        else "Decisions alone: no image was generated, and each request is kept before the next request."
    )
    if settings["steps"] is None:
        drawn += (
            " Each request takes the trace's own T. Steps saved are the share of all requested steps that was skipped, "
            "and K is of 50. A state starts a run of another T where that run has exactly its noise level by the "
            f"schedule of {html.escape(settings['schedule'])}."
        )
    if stand_in is None:
        return drawn
    check = stand_in["check"]
    return (
        f"{drawn} Similarities of prompts to images are a <b>surrogate</b>, made from similarities of prompts. "
        f"The surrogate was fitted on {stand_in['pictures'] // 2} images of {html.escape(stand_in['model'])}. On as "
        f"many others it allows the same level as the images in {check['same_level']:.0%} of lookups, and is within "
        f"one level in {check['within_one_level']:.0%}."
    )


def _timed(budget: Budget) -> bool:
    return any(one["timed"] for one in budget["policies"].values())


def timed_table(budget: Budget) -> str:
    """Tabulate latency, queueing and SLOs of every policy; a dash stands for a figure that this mode lacks."""
    names = ("policy", "served/s", "p50 s", "p95 s", "p99 s", "queued p50 s", "queued p99 s", "longest queue", "busy",
             "rows a batch")  # fmt: skip
    first = next(one["timed"] for one in budget["policies"].values() if one["timed"])
    slo = [
        f"within {times}× alone" + (f" ({limit:.3g} s)" if limit is not None else "")
        for times, limit in first["slo_s"].items()
    ]
    shown = []
    for name, policy in budget["policies"].items():
        one, queued = policy["timed"], policy["timed"]["queued_s"] or {}
        shown.append([
            html.escape(_shown(name, policy)), f"{one['served_per_s']:.2f}",
            *(f"{one['latency_s'][q]:.2f}" for q in QUANTILES),
            dashed(queued.get("p50"), ".2f"), dashed(queued.get("p99"), ".2f"), dashed(one["longest_queue"], ","),
            dashed(one["busy"], ".0%"), dashed(one["rows"], ".1f"), *(f"{share:.1%}" for share in one["slo"].values()),
        ])  # fmt: skip
    of, rate = f"{budget['states']:,} {budget['of']}", first["offered_per_s"]
    offered = "one at a time" if rate is None else f"{rate:.3g} requests a second"
    where = "in virtual time" if first["busy"] is not None else "on real models"
    return _html(f"{of}: {offered} {where}", *told((*names, *slo), shown))


def told(names: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Return the table without its empty columns."""
    kept = [place for place in range(len(names)) if any(row[place] != "–" for row in rows)]
    return [names[place] for place in kept], [[row[place] for place in kept] for row in rows]


def _html(caption: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{name}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><caption>{caption}</caption><tr>{head}</tr>{body}</table>"


def _table(budget: Budget) -> str:
    names = (
        "policy", "steps saved", "95 % over users", "of the bound", "hits", "by pairs", "own user's", "evicted states",
        "states held", "MB held", "reuse age p50, s", "decisions/s",
    )  # fmt: skip
    return _html(_room(budget), *told(names, rows_of(budget)))


def _room(budget: Budget) -> str:
    size = f" ({budget['max_bytes'] / 1e6:,.1f} MB)" if budget["max_bytes"] else ""
    return f"{budget['states']:,} {budget['of']}{size}"


def rows_of(budget: Budget) -> list[list[str]]:
    """Return the cells of a budget's table: one row per policy, then the bounds."""
    upper = (budget["bound"] or {}).get("steps_saved")
    rows = []
    for name, one in budget["policies"].items():
        share = f"{one['steps_saved'] / upper:.1%}" if upper and one["bounded"] else "–"
        age = one["reuse_age_s"].get("0.5")
        rows.append([
            html.escape(f"{_shown(name, one)}: {one['title']}"), f"{one['steps_saved']:.2%}",
            "{:.2%} – {:.2%}".format(*one["steps_saved_95"]), share, f"{one['hit_rate']:.2%}",
            dashed(one.get("by_pairs") or None, ".2%"), f"{one['own_user']:.1%}", f"{one['evictions']:,}",
            f"{one['states']:,}", f"{one['bytes'] / 1e6:,.1f}", dashed(age, ",.0f"),
            dashed(one["decisions_per_s"], ",.0f"),
        ])  # fmt: skip
    if upper:
        empty = ["", "–", *[""] * 6]
        rows.append(["offline bound within the budget", f"{upper:.2%}", "", "100.0%", *empty])
        rows.append(["offline bound of any size", f"{budget['bound']['infinite']:.2%}", "", "", *empty])
    return rows


def sections(budgets: Sequence[Budget]) -> list[str]:
    """Return the further tables of the page, each kind below a heading and a definition."""
    return [
        "<h2>Start steps and reuse</h2><p>K: denoising steps that were skipped, 0 from noise. Age: seconds between a "
        "hit and the request whose state it started from (MoDM §A.1), at the 10th to 99th percentile of the hits.</p>",
        *map(_starts_table, budgets),
        "<h2>Fairness</h2><p>Shares of saved steps of each user with at least "
        f"{_first(budgets)['fairness']['least_requests']} counted requests. Jain's index is (Σx)²/(n·Σx²) of these "
        "shares: 1 where all users save equally, 1/n where one user saves everything. A user without similar requests "
        "saves little under any policy: compare policies with each other, not with 1.</p>",
        *map(_fairness_table, budgets),
        *_predictors(budgets),
    ]


def _first(budgets: Sequence[Budget]) -> Mapping[str, Any]:
    figures: Mapping[str, Any] = next(iter(budgets[0]["policies"].values()))
    return figures


def _starts_table(budget: Budget) -> str:
    policies = budget["policies"]
    ks = sorted({int(k) for one in policies.values() for k in one["k_histogram"]})
    rows = []
    for name, one in policies.items():
        counts, ages = one["k_histogram"], one["reuse_age_s"]
        shares = [f"{counts.get(str(k), 0) / max(one['requests'], 1):.1%}" for k in ks]
        rows.append([
            html.escape(_shown(name, one)), *shares, *(f"{ages[q]:,.0f}" if ages else "–" for q in AGES)
        ])  # fmt: skip
    names = ("policy", *(f"K = {k}" for k in ks), *(f"age p{100 * float(q):g}, s" for q in AGES))
    return _html(_room(budget), names, rows)


def _fairness_table(budget: Budget) -> str:
    rows = []
    for name, policy in budget["policies"].items():
        one = policy["fairness"]
        if one["users"]:
            index = "–" if one["jain"] is None else f"{one['jain']:.3f}"
            saved = [f"{share:.1%}" for share in one["saved"].values()]
            rows.append([html.escape(_shown(name, policy)), index, f"{one['without_any']:.1%}", *saved])
    one = _first([budget])["fairness"]
    if not one["users"]:
        return f"<p>{_room(budget)}: no user has that many requests.</p>"
    who = f"{_room(budget)}: {one['users']:,} users, who asked {one['requests']:.0%} of the requests"
    return _html(who, ("policy", "Jain's index", "saved nothing", *(f"saved, {q}" for q in one["saved"])), rows)


def _predictors(budgets: Sequence[Budget]) -> list[str]:
    """Return the table of match predictors; empty if no policy has one."""
    rows = []
    for budget in budgets:
        for name, policy in budget["policies"].items():
            one = policy["predictor"]
            if one is not None:
                shares = ["–" if one[what] is None else f"{one[what]:.2%}" for what in ("precision", "recall")]
                shares.append(dashed(one["auc"], ".3f"))
                counts = [f"{one[what]:,}" for what in ("let_through", "would_hit", "both")]
                rows.append([f"{html.escape(_shown(name, policy))}, {_room(budget)}", *counts, *shares])
    if not rows:
        return []
    return [
        "<h2>Match predictor</h2><p>Every request is looked up in the policy's cache at that moment, also requests "
        "that the predictor does not let through and that start from noise. So the replay knows which requests would "
        "have hit (found a state to start from). Precision (c_p of NIRVANA §5.2): share of the requests let through "
        "that hit. Recall: share of the requests that would have hit that were let through. AUC: share of the pairs of "
        "a request that would have hit and one that would not, where the first has the higher score. The figures hold "
        "for the cache under this predictor.</p>",
        _html("counted requests", ("policy", "let through", "would have hit", "both", *PREDICTED), rows),
    ]


def _shown(name: str, figures: Mapping[str, Any]) -> str:
    return label(name, figures["surrogate"])


def _image(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<p><img alt="{path.stem}" src="data:image/png;base64,{data}"></p>'
