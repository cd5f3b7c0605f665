"""Write the tables of the pages in bench/replay/ from the summaries beside them.

    python -m bench.replays.replay_tables    (after python -m bench.replays.replay_days)

Each mark of this command in a page names one table: KIND_FOLDER. A test compares the pages with the summaries.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.measuring.marks import placed, places
from bench.measuring.recording import share, table
from bench.replays.replay_days import AHEAD, OURS, PUBLISHED, REPLAY
from services.replay.results.compare import label
from services.replay.results.relations import RELATIONS

PAGES = sorted(REPLAY.rglob("*.md"))
COMMAND = "python -m bench.replays.replay_tables"
NEVER_EVICTS, LRBU = "infinite", "lrbu-hits"

Summary = Mapping[str, Any]
Rows = Sequence[Sequence[object]]


def _headed(first: str, budgets: Sequence[Mapping[str, Any]], rows: Rows) -> str:
    return table([first, *(f"{budget['states']:,} {budget.get('of', 'states')}" for budget in budgets)], rows)


def _by_policy(summary: Summary, cell: Callable[[Mapping[str, Any], Mapping[str, Any]], str]) -> Iterator[list[str]]:
    """Yield a row for each policy. `cell` makes each budget's cell from the policy's figures and the budget."""
    budgets = summary["budgets"]
    for name, one in budgets[0]["policies"].items():
        named = f"`{name}`{label('', one['surrogate'])}"
        yield [named, *(cell(budget["policies"][name], budget) for budget in budgets)]


def steps(summary: Summary, folder: Path) -> str:
    """Tabulate steps saved, their interval, the share of requests that hit, and the share of the offline bound."""
    rows = list(_by_policy(summary, _saved))
    bounds = [budget["bound"] for budget in summary["budgets"]]
    if all(bounds):
        rows.append(["offline bound", *(share(one["steps_saved"]) for one in bounds)])
        rows.append(["every state of every earlier request", *(share(one["infinite"]) for one in bounds)])
    return _headed("steps saved (95 % over users; hits; of the bound)", summary["budgets"], rows)


def _saved(one: Mapping[str, Any], budget: Mapping[str, Any]) -> str:
    low, high = (100 * side for side in one["steps_saved_95"])
    said = f"{share(one['steps_saved'])} ({low:.1f}–{high:.1f}; {share(one['hit_rate'], 0)}"
    if budget["bound"] and one["bounded"]:
        said += f"; {share(one['steps_saved'] / budget['bound']['steps_saved'], 0)}"
    return said + ")"


def ahead(summary: Summary, folder: Path) -> str:
    """Compare each of OURS with every other policy: the ratio of steps saved, and the difference in percentage points.

    `afterimage-int8` is compared with the published policies alone.
    """
    differences = json.loads((folder / AHEAD).read_text(encoding="utf-8"))
    budgets = summary["budgets"]
    rows = []
    for ours in (name for name in OURS if name in differences):
        for other, by_budget in differences[ours].items():
            if not _alike(summary, other) or (ours != OURS[0] and other not in PUBLISHED):
                continue
            cells = []
            for budget in budgets:
                mine, theirs = (budget["policies"][name]["steps_saved"] for name in (ours, other))
                more, low, high = (100 * value for value in by_budget[str(budget["states"])])
                ratio = f"{mine / theirs:.3f}×" if theirs else "–"
                cells.append(f"{ratio}, {more:+.2f} ({low:+.2f} to {high:+.2f})")
            rows.append([f"`{ours}` beside `{other}`" + ("*" if other in PUBLISHED else ""), *cells])
    return _headed("times the steps saved, and percentage points more (95 % over users)", budgets, rows)


def _alike(summary: Summary, name: str) -> bool:
    """Return whether the policy reuses latents and evicts, as OURS do; such policies share one similarity → K table."""
    policy = summary["settings"]["policies"][name]
    return policy["reuses"] == "latent" and not policy["unlimited"]


def relations(summary: Summary, folder: Path) -> str:
    """Tabulate the saving at the smallest budget by relation, with and without re-rolls.

    The saving is also a share of that of NEVER_EVICTS, and a multiple of that of LRBU with the same lookups.
    """
    first = summary["budgets"][0]
    policies = first["policies"]

    def compared(name: str, key: str) -> list[str]:
        mine, all_kept, lrbu = (policies[one][key] for one in (name, NEVER_EVICTS, LRBU))
        return [share(mine), share(mine / all_kept, 1), f"{mine / lrbu:.2f}×"]

    rows = [
        [
            f"`{name}`",
            *compared(name, "steps_saved"),
            *(share(one["by_relation"][kind.value]["steps_saved"] / one["steps_saved"], 1) for kind in RELATIONS),
            *compared(name, "steps_saved_without_rerolls"),
        ]
        for name, one in policies.items()
    ]
    beside = [f"of `{NEVER_EVICTS}`", f"times `{LRBU}`"]
    heads = ["steps saved", *beside, *RELATIONS.values(), "without re-rolls", *beside]
    return table([f"{first['states']:,} {first['of']}", *heads], rows)


def tenths(summary: Summary, folder: Path) -> str:
    """Tabulate the steps saved at the smallest budget in each tenth of the counted requests."""
    first = summary["budgets"][0]
    rows = [
        [f"`{name}`", *(f"{100 * part:.1f}" for part in one["parts"])]
        for name, one in first["policies"].items()
        if _alike(summary, name)
    ]
    parts = range(1, len(next(iter(first["policies"].values()))["parts"]) + 1)
    return table([f"% of the steps saved at {first['states']:,} states, by tenths", *map(str, parts)], rows)


def speed(summary: Summary, folder: Path) -> str:
    """Tabulate decisions a second of processor time."""
    rows = list(_by_policy(summary, lambda one, _: f"{one['decisions_per_processor_s']:,.0f}"))
    return _headed("decisions a second of processor time", summary["budgets"], rows)


def fairness(summary: Summary, folder: Path) -> str:
    """Tabulate Jain's index of the users' savings, and the share of users who save nothing."""
    rows = list(
        _by_policy(
            summary, lambda one, _: f"{one['fairness']['jain']:.3f} ({share(one['fairness']['without_any'], 1)})"
        )
    )
    return _headed("Jain's index over users (who save nothing)", summary["budgets"], rows)


def predictor(summary: Summary, folder: Path) -> str:
    """Tabulate NIRVANA's SVM in front of the lookups: requests let through, precision and recall."""
    asked = [(budget, budget["policies"]["nirvana"]) for budget in summary["budgets"]]
    said: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "let through": lambda one: f"{one['predictor']['let_through']:,} of {one['requests']:,}",
        "would have hit": lambda one: f"{one['predictor']['would_hit']:,}",
        "precision": lambda one: f"{one['predictor']['precision']:.3f}",
        "recall": lambda one: f"{one['predictor']['recall']:.4f}",
        "steps saved": lambda one: share(one["steps_saved"]),
        "decisions a second of processor time": lambda one: f"{one['decisions_per_processor_s']:,.0f}",
    }
    rows = [[name, *(cell(one) for _, one in asked)] for name, cell in said.items()]
    without = [budget["policies"]["nirvana-without-predictor"]["steps_saved"] for budget, _ in asked]
    rows.insert(5, ["steps saved without it", *map(share, without)])
    return _headed("`nirvana`", summary["budgets"], rows)


def predictors(summary: Summary, folder: Path) -> str:
    """Tabulate every predictor in front of the lookups: requests let through, precision, recall and AUC."""

    def cell(one: Mapping[str, Any], budget: Mapping[str, Any]) -> str:
        what = one["predictor"]
        shares = f"{what['precision']:.3f}; {what['recall']:.4f}; {what['auc']:.3f}"
        return f"{shares} ({what['let_through']:,} of {one['requests']:,}; {share(one['steps_saved'])})"

    rows = [
        [f"`{name}`", *(cell(budget["policies"][name], budget) for budget in summary["budgets"])]
        for name, one in summary["budgets"][0]["policies"].items()
        if one["predictor"]
    ]
    return _headed("precision; recall; AUC (let through; steps saved)", summary["budgets"], rows)


def timed(summary: Summary, folder: Path) -> str:
    """Tabulate latency and SLOs in virtual time."""
    (budget,) = summary["budgets"]
    rows = []
    for name, one in budget["policies"].items():
        what = one["timed"]
        waits = [f"{what['latency_s'][at]:.2f}" for at in ("p50", "p95", "p99")] + [f"{what['queued_s']['p99']:.2f}"]
        within = [share(part, 1) for part in what["slo"].values()]
        saved = f"{share(one['steps_saved'])} ({share(one['hit_rate'], 0)})"
        busy = [share(what["busy"], 0), f"{what['rows']:.1f}"]
        rows.append([f"`{name}`{label('', one['surrogate'])}", saved, *waits, *within, *busy])
    heads = [
        "",
        "steps saved (hits)",
        "p50 s",
        "p95 s",
        "p99 s",
        "queued p99 s",
        "within 2 × alone",
        "within 4 ×",
        "busy",
    ]
    return table([*heads, "rows a batch"], rows)


KINDS: Mapping[str, Callable[[Summary, Path], str]] = {
    made.__name__: made for made in (steps, ahead, relations, tenths, speed, fairness, predictor, predictors, timed)
}


def written(text: str, folder: Path = REPLAY) -> str:
    """Return the text with every table written again from its summary in `folder`.

    Raises KeyError for an unknown kind of table.
    """
    blocks = {}
    for name in places(text, COMMAND):
        kind, of = name.split("_", 1)
        summary = json.loads((folder / of / "summary.json").read_text(encoding="utf-8"))
        blocks[name] = f"\n{KINDS[kind](summary, folder / of)}"
    return placed(text, blocks, COMMAND)


def main(arguments: Sequence[str] | None = None) -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args(
        arguments
    )
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        if (text := written(before)) != before:
            page.write_text(text, encoding="utf-8")
            print(f"wrote {page}")


if __name__ == "__main__":
    main()
