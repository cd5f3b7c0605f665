"""Compare the papers' figures of their caches with the replays of bench/replay/: tables and plots.

    python -m bench.replays.replay_shapes

The figures are NIRVANA Figs. 15 and 12, MoDM Fig. 9 and §A.1, and FlexCache Table 1. The papers' numbers come from
their text (`paper_shapes.json`, each with its source), the replays' numbers from the summaries. A policy or budget that
a summary lacks is left out, and a line below the table names it. The tables go between their marks in the pages of
bench/replay/, the plots into bench/replay/paper_shapes/.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.measuring.marks import placed, places
from bench.measuring.plotting import pyplot_or_none
from bench.measuring.recording import share, table
from bench.replays.replay_days import REPLAY
from bench.replays.shape_plots import draw_ages, draw_hit_rates, draw_policies, draw_savings, draw_stream
from bench.replays.shapes import (
    ENTRIES,
    FIG_9,
    FIG_12,
    FIG_15,
    PAPERS,
    TABLE_1,
    UNLIMITED,
    Figures,
    Shape,
    at_least,
    over_stream,
    read_shape,
    rising,
    saved_at,
    skipped,
    throughput,
    within,
)

COMMAND = "python -m bench.replays.replay_shapes"
SHOWN = (0, 3, 6, 9)
"""Tenths of the stream that the table shows, counted from 0. The plot shows all ten."""
NAMES = ("nirvana_fig_15", "modm_fig_9", "modm_a_1", "flexcache_table_1", "nirvana_fig_12")
"""Names in paper_shapes.json, which also name the marks in the pages and the plots."""


def fig_15(paper: Figures, shape: Shape) -> str:
    """Tabulate NIRVANA Fig. 15: h(K), and the steps saved at K itself."""
    ks, h, saved = paper["ks"], paper["h"], paper["saved_at"]
    cells = [_pair(h.get(str(k)), saved.get(str(k))) for k in ks]
    whole = [share(paper["steps_saved"], 1), f"{skipped(paper, paper['steps']):.1f}"]
    rows: list[Sequence[object]] = [["**NIRVANA**", f"{paper['states']:,} states", *cells, *whole]]
    for budget, name, one in shape.rows():
        cells = [_pair(at_least(one, k), saved_at(one, k, shape.steps)) for k in ks]
        whole = [share(one["steps_saved"], 1), f"{skipped(one, shape.steps):.1f}"]
        rows.append([f"`{name}`", budget, *cells, *whole])
    potential = [f"K = {k} (of {share(k / paper['steps'], 0)})" for k in ks]
    return table(["h(K) / saved at K, %", "cache", *potential, "saved in all", "steps a hit skips"], rows)


def fig_12(paper: Figures, shape: Shape) -> str:
    """Tabulate NIRVANA Fig. 12: hits and throughput in tenths of the stream, cost and throughput of the whole
    stream."""
    whole = [share(paper["hit_rate"], 0), f"{paper['cost']:.2f}", f"{paper['throughput']:.2f}"]
    rows: list[Sequence[object]] = [["**NIRVANA**", f"{paper['states']:,} states", *("–" for _ in SHOWN), *whole]]
    for budget, name, one in shape.rows():
        parts = over_stream(one)
        cells = [f"{share(parts[at][0], 0)}, {parts[at][1]:.2f}" for at in SHOWN]
        saved = one["steps_saved"]
        whole = [share(one["hit_rate"], 0), f"{1 - saved:.2f}", f"{throughput(saved):.2f}"]
        rows.append([f"`{name}`{_stand_in(one)}", budget, *cells, *whole])
    tenths = [f"tenth {at + 1}" for at in SHOWN]
    return table(["hits, throughput (no cache = 1)", "cache", *tenths, "hits", "cost", "throughput"], rows)


def fig_9(paper: Figures, shape: Shape) -> str:
    """Tabulate MoDM Fig. 9: hit rate by size, and the steps that a hit skips on average."""
    sizes = paper["sizes"]
    rows: list[Sequence[object]] = [["**MoDM**", *(share(paper["hit_rate"].get(str(size)), 1) for size in sizes)]]
    for title, policy in FIG_9.items():
        ours = [shape.found.get(size, {}).get(policy) for size in sizes]
        cells = [f"{share(one['hit_rate'], 1)} ({skipped(one, shape.steps):.1f})" if one else "–" for one in ours]
        rows.append([title + _stand_in(*ours), *cells])
    names = {policy: title for title, policy in FIG_9.items()}
    hits = [{names[policy]: one["hit_rate"] for policy, one in shape.found.get(size, {}).items()} for size in sizes]
    rows.append([f"order; MoDM's: {' < '.join(paper['order'])}", *(rising(each) or "–" for each in hits)])
    return table(["hit rate (steps a hit skips)", *(f"{size:,} {shape.of}" for size in sizes)], rows)


def a_1(paper: Figures, shapes: Sequence[Shape]) -> str:
    """Tabulate MoDM §A.1: the share of hits that start from a state or image at most four hours old."""
    rows: list[Sequence[object]] = [["**MoDM**", "–", f"over {share(paper['at_least'], 0)}", "–", "–"]]
    for shape in shapes:
        for budget, name, one in shape.rows():
            half = one["reuse_age_s"].get("0.5")
            median = "–" if half is None else f"{half / 60:.1f}"
            shares = share(within(one, paper["within_s"]), 1), median, share(one["own_user"], 1)
            rows.append([f"`{name}`{_stand_in(one)}", budget, *shares])
    hours = f"at most {paper['within_s'] / 3600:g} hours old"
    return table(["what hits start from", "cache", hours, "median, minutes", "the user's own"], rows)


def table_1(paper: Figures, shape: Shape, unlimited: int) -> str:
    """Tabulate FlexCache Table 1, and the replays in its columns.

    `unlimited` is the number of states that a cache without evictions ends with, or 0 if unknown.
    """
    names = list(paper["hit_rate"])
    rows: list[Sequence[object]] = []
    for place, gb in enumerate(paper["gb"]):
        hits, saved = ({name: paper[what][name][place] for name in names} for what in ("hit_rate", "steps_saved"))
        cells = [_pair(hits[name], saved[name], digits=0) for name in names]
        rows.append(["**FlexCache**", f"{gb:,} GB", share(gb / paper["everything_gb"], 1), *cells, rising(saved)])
    for reading, policies in TABLE_1.items():
        for budget, found in shape.found.items():
            ours = {name: found[policy] for name, policy in policies.items() if policy in found}
            cells = [_pair(ours[n]["hit_rate"], ours[n]["steps_saved"]) if n in ours else "–" for n in names]
            part = share(budget / unlimited if unlimited else None, 1)
            order = rising({name: one["steps_saved"] for name, one in ours.items()})
            rows.append([reading, f"{budget:,} {shape.of}", part, *cells, order or "–"])
    return table(["hits / saved, %", "cache", "of all states made", *names, "order of what is saved"], rows)


def _pair(first: float | None, second: float | None, digits: int = 1) -> str:
    """Return two shares in per cent, with – for a number that the text lacks."""
    if first is None and second is None:
        return "–"
    return " / ".join("–" if value is None else f"{100 * value:.{digits}f}" for value in (first, second))


def _stand_in(*ones: Figures | None) -> str:
    return " (surrogate)" if any(one and one["surrogate"] for one in ones) else ""


def block(body: str, paper: Figures, *shapes: Shape) -> str:
    """Return a table with its sources: the paper's section, numbers missing in its text, and replays left out."""
    lines = [f"{paper['source']}. Not in its text: {paper['not_in_the_text']}."]
    for shape in shapes:
        lacking = f" Not replayed, and left out: {', '.join(shape.left_out)}." if shape.left_out else ""
        source = f"[{shape.folder}](../{shape.folder}/summary.json)"
        lines.append(f"Ours: {source}, {shape.requests:,} counted requests.{lacking}")
    return f"{body}\n\n" + "\n".join(lines)


def read_all(replays: Path) -> tuple[Shape, Shape, Shape, Shape]:
    """Read the four shapes from a folder of replays.

    In order: savings and ages by states, MoDM's entries, FlexCache's policies, and the stream.
    """
    compared = [policy for policies in TABLE_1.values() for policy in policies.values()]
    return (
        read_shape(replays, "sizes_ignored", FIG_15),
        read_shape(replays, ENTRIES, tuple(FIG_9.values())),
        read_shape(replays, "sizes_ignored", compared),
        read_shape(replays, "baselines", FIG_12),
    )


def states_made(shape: Shape) -> int:
    """Return the number of states that a cache without evictions ends with; 0 without such a replay."""
    return max((one["states"] for _, name, one in shape.rows() if name == UNLIMITED), default=0)


def blocks_of(
    papers: Mapping[str, Figures], states: Shape, entries: Shape, policies: Shape, stream: Shape
) -> dict[str, str]:
    """Return the Markdown block of each figure, keyed by the figure's name in paper_shapes.json."""
    nirvana, hits, ages, flexcache, over = (papers[name] for name in NAMES)
    return {
        NAMES[0]: block(fig_15(nirvana, states), nirvana, states),
        NAMES[1]: block(fig_9(hits, entries), hits, entries),
        NAMES[2]: block(a_1(ages, (entries, states)), ages, entries, states),
        NAMES[3]: block(table_1(flexcache, policies, states_made(states)), flexcache, policies),
        NAMES[4]: block(fig_12(over, stream), over, stream),
    }


def draw(
    papers: Mapping[str, Figures], states: Shape, entries: Shape, policies: Shape, stream: Shape, folder: Path
) -> None:
    """Plot each block; without matplotlib, print a line instead."""
    pyplot = pyplot_or_none()
    if pyplot is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    nirvana, hits, ages, flexcache, over = (papers[name] for name in NAMES)
    paths = [folder / f"{name}.png" for name in NAMES]
    draw_savings(pyplot, paths[0], nirvana, states)
    draw_hit_rates(pyplot, paths[1], hits, entries)
    draw_ages(pyplot, paths[2], ages, (entries, states))
    draw_policies(pyplot, paths[3], flexcache, policies, states_made(states))
    draw_stream(pyplot, paths[4], over, stream)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--replays", type=Path, default=REPLAY, help="folder of the replays (FOLDER/summary.json each) and of the pages"
    )
    asked = parser.parse_args(given)
    papers, shapes = json.loads(PAPERS.read_text(encoding="utf-8")), read_all(asked.replays)
    blocks = blocks_of(papers, *shapes)
    print("\n\n".join(blocks.values()))
    pages = {path: path.read_text(encoding="utf-8") for path in sorted(asked.replays.rglob("*.md"))}
    for name, content in blocks.items():
        page = next((path for path, text in pages.items() if name in places(text, COMMAND)), None)
        if page is None:
            parser.error(f"--replays: no page of {asked.replays} has a place for {name}")
        pages[page] = placed(pages[page], {name: content}, COMMAND)
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    draw(papers, *shapes, asked.replays / "paper_shapes")


if __name__ == "__main__":
    main()
