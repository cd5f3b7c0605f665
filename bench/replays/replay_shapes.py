"""The papers' own figures of their caches beside what the replays of bench/replay/ found: tables and pictures.

    python -m bench.replays.replay_shapes

NIRVANA Figs. 15 and 12, MoDM Fig. 9 and §A.1, FlexCache Table 1. Of the papers there is what their text says
(`paper_shapes.json`, each with its place), of ours what the summaries hold: a policy or a budget that is not there is
left out, and a line says so. The tables go between their marks in bench/replay/README.md, the pictures into
bench/replay/paper_shapes/.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.measuring.marks import placed
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
"""Of the tenths of the stream those that the table shows; the picture shows all."""
NAMES = ("nirvana_fig_15", "modm_fig_9", "modm_a_1", "flexcache_table_1", "nirvana_fig_12")
"""Of what paper_shapes.json holds, the marks in the README and the pictures."""


def fig_15(paper: Figures, shape: Shape) -> str:
    """NIRVANA Fig. 15 as rows: h(K), and what was saved at K itself."""
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
    """NIRVANA Fig. 12 as rows: hits and throughput in tenths of the stream; cost and throughput over all of it."""
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
    """MoDM Fig. 9 as rows: hit rate by size, and how many steps a hit skips."""
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
    """MoDM §A.1 as rows: how much of what hits start from is at most four hours old."""
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
    """FlexCache Table 1 and ours in its columns; `unlimited`: states that a cache without evictions ends with, or 0."""
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
    """Two shares in per cent; – for what the text does not say."""
    if first is None and second is None:
        return "–"
    return " / ".join("–" if value is None else f"{100 * value:.{digits}f}" for value in (first, second))


def _stand_in(*ones: Figures | None) -> str:
    return " (surrogate)" if any(one and one["surrogate"] for one in ones) else ""


def block(body: str, paper: Figures, *shapes: Shape) -> str:
    """A table, where the paper's numbers stand, what its text does not say, and what of ours is not there."""
    lines = [f"{paper['source']}. Not in its text: {paper['not_in_the_text']}."]
    for shape in shapes:
        lacking = f" Left out, not being there: {', '.join(shape.left_out)}." if shape.left_out else ""
        source = f"[{shape.folder}]({shape.folder}/summary.json)"
        lines.append(f"Ours: {source}, {shape.requests:,} counted requests.{lacking}")
    return f"{body}\n\n" + "\n".join(lines)


def read_all(replays: Path) -> tuple[Shape, Shape, Shape, Shape]:
    """What is drawn of a folder of replays: savings and ages by states, MoDM's entries, FlexCache's policies, the
    stream."""
    compared = [policy for policies in TABLE_1.values() for policy in policies.values()]
    return (
        read_shape(replays, "sizes_ignored", FIG_15),
        read_shape(replays, ENTRIES, tuple(FIG_9.values())),
        read_shape(replays, "sizes_ignored", compared),
        read_shape(replays, "baselines", FIG_12),
    )


def states_made(shape: Shape) -> int:
    """States that a cache without evictions ends with; 0 where it was not replayed."""
    return max((one["states"] for _, name, one in shape.rows() if name == UNLIMITED), default=0)


def blocks_of(
    papers: Mapping[str, Figures], states: Shape, entries: Shape, policies: Shape, stream: Shape
) -> dict[str, str]:
    """Each paper's block for the README, by its name in paper_shapes.json."""
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
    """A picture for each block; none, and a line that says so, without matplotlib."""
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
    parser.add_argument("--replays", type=Path, default=REPLAY, help="folders with a summary.json each, and README.md")
    asked = parser.parse_args(given)
    readme = asked.replays / "README.md"
    if not readme.is_file():
        parser.error(f"--replays: no README.md in {asked.replays}")
    papers, shapes = json.loads(PAPERS.read_text(encoding="utf-8")), read_all(asked.replays)
    blocks = blocks_of(papers, *shapes)
    print("\n\n".join(blocks.values()))
    try:
        text = placed(readme.read_text(encoding="utf-8"), blocks, COMMAND)
    except LookupError as error:
        parser.error(f"{readme}: {error}")
    readme.write_text(text, encoding="utf-8")
    draw(papers, *shapes, asked.replays / "paper_shapes")


if __name__ == "__main__":
    main()
