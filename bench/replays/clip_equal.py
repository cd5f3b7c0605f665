"""Throughput of policies for clips at equal bytes and equal measured quality (FlexCache §6.2.2).

    python -m bench.replays.clip_equal                              (the project's own sessions of clips)
    python -m bench.replays.clip_equal --whole-levels 1:0.4658 --pair-levels 5:0.8094 --name clip_equal_mean

`bench.replays.clip_replays` takes the paper's thresholds, which were not measured with this model. Here every policy
starts a clip only where the model's measured tables of `--alpha` allow it: from whole prompts by `k_table_*.json`, from
pairs by `pair_k_table_*.json`, at each T whose runs from noise keep the quality. So policies differ in their lookups,
codecs and eviction alone. Throughput without a cache, at the same T, is 1.

*Kept* is the measured quality of the clips, as a share of that of the same clips from noise: the mean over all counted
requests of the values that the tables' cells have at the start's K and similarity; 1 for a clip from noise. These were
measured with states in fp16.

`--whole-levels` and `--pair-levels` replace the levels by others that the tables' cells have measured, so that two
policies can be compared at an equal mean of *kept*.

The budget is the bytes that FlexCache's states of the fill take with these tables; smaller budgets are a fifth, a 25th
and a 125th.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.measuring.recording import machine, record, settings_of, share, table
from bench.replays.clip_figures import Figures, of_run
from bench.replays.clip_replays import (
    COMPARED,
    DIVISORS,
    FLEET,
    FLEXCACHE,
    NIRVANA,
    OURS,
    Replays,
    offered,
    replay_command_line,
)
from services.replay.policy import read_policy
from services.replay.results.figures import Run
from services.replay.traces.encoders import open_encoder
from shared.models.card_lookup import find_card
from shared.models.k_table import Cell, KTable, Level, named_table, read_table
from shared.runtime.progress import shown

KEPT = ("attributes", "fidelity")
"""Measures of Quality that are stated: images that show what was asked for, and CLIP scores."""
BELOW = 2e-4
"""A level begins 1e-4 below the least similarity of its cell."""
BESIDE = {"FlexCache / NIRVANA": (FLEXCACHE, NIRVANA), "ours / FlexCache": (OURS, FLEXCACHE)}
"""Title → the policies whose throughputs are compared."""


def own_tables(
    folder: Path, weights_hash: str, encoder_hash: str, alpha: float
) -> Iterator[tuple[KTable, KTable | None, str]]:
    """Yield the K table of each T in a model's folder, its table for pairs, and why it does not apply, if so."""

    def misfit(one: KTable) -> str:
        if one.encoder_hash != encoder_hash:
            return "measured with another encoder"
        if one.weights_hash != weights_hash:
            return "measured with other weights"
        return "its runs from noise lose quality" if one.noise is not None and not one.noise.safe else ""

    def tables(kind: str) -> Iterator[KTable]:
        for path in sorted(folder.glob(f"{kind}_{alpha:g}*.json")):
            if (one := read_table(path)).alpha == alpha:  # "0.9*" is also the name of 0.95
                yield one

    pairs = list(tables("pair_k_table"))
    for one in tables("k_table"):
        of_pairs = next((pair for pair in pairs if pair.steps == one.steps and not misfit(pair)), None)
        yield one, of_pairs, misfit(one)


def with_levels(table: KTable, levels: Sequence[str]) -> KTable:
    """Return the table with these levels, each as K:similarity; the table itself for none."""
    pairs = [one.split(":") for one in levels]
    return replace(table, levels=tuple(Level(int(k), float(least)) for k, least in sorted(pairs))) if levels else table


def cell_of(cells: Iterable[Cell], step: int, similarity: float) -> Cell | None:
    """Return the cell whose measurement covers a start: of the smallest measured K that is not below its own, the band
    that reaches furthest up among those that begin at or below its similarity. None: not measured."""
    fit = [cell for cell in cells if cell.k >= step and cell.min_similarity <= similarity + BELOW]
    return min(fit, key=lambda cell: (cell.k, -cell.min_similarity), default=None)


def kept(run: Run, fill: int, whole: KTable, pairs: KTable) -> dict[str, float | None]:
    """Return each measure's mean over the counted requests; None where a start was not measured."""
    made = run.decisions
    starts, second = made.start_step[fill:].tolist(), made.second[fill:].tolist()
    values: dict[str, list[float | None]] = {name: [] for name in KEPT}
    for step, other, similarity in zip(starts, second, made.similarity[fill:].tolist(), strict=True):
        cell = cell_of((pairs if other >= 0 else whole).cells, step, similarity) if step else None
        for name, found in values.items():
            measured = getattr(cell.quality, name) if cell is not None and cell.quality is not None else None
            found.append(1.0 if not step else measured.value if measured is not None else None)
    return {
        name: None if None in found else fmean(one for one in found if one is not None)
        for name, found in values.items()
    }


def at_equal_quality(replays: Replays, fill: int, whole: KTable, pairs: KTable) -> dict[str, Any]:
    """Replay every policy with these tables at each budget."""
    load = replays.load_by(named_table(whole), named_table(pairs))
    alone_s = FLEET.profile.alone_s(whole.steps)
    every = replays.run("unlimited", read_policy(FLEXCACHE).model_copy(update={"unlimited": True}), 1, load)
    room = int(every.decisions.bytes[fill - 1])
    by_room: dict[str, dict[str, Figures]] = {}
    for one in [room // divisor for divisor in DIVISORS]:
        runs = {name: replays.run(name, read_policy(name), one, load) for name in COMPARED}
        by_room[str(one)] = {
            name: {**of_run(run, fill, whole.steps, alone_s), "kept": kept(run, fill, whole, pairs)}
            for name, run in runs.items()
        }
    return {"room": room, "state_bytes": int(load.state_bytes[0]), "by_room": by_room}


def all_tables(replays: Replays, asked: argparse.Namespace, encoder_hash: str) -> list[dict[str, Any]]:
    """Return the figures of each T that has a table."""
    found, card = list[dict[str, Any]](), find_card("bundled:motion")
    for whole, of_pairs, why_not in own_tables(card.folder, card.weights_hash, encoder_hash, asked.alpha):
        pairs = of_pairs or KTable((), whole.steps)
        whole, pairs = with_levels(whole, asked.whole_levels), with_levels(pairs, asked.pair_levels)
        levels = {name: [[one.k, one.min_similarity] for one in each.levels]
                  for name, each in (("whole", whole), ("pairs", pairs))}  # fmt: skip
        found.append({"steps": whole.steps, "levels": levels, "why_not": why_not})
        if not why_not and (whole.levels or pairs.levels):
            found[-1] |= at_equal_quality(replays, asked.fill, whole, pairs)
    return found


def report(found: Sequence[dict[str, Any]]) -> str:
    """Return the tables of bench/README.md."""
    blocks = list[str]()
    for one in found:
        levels = "; ".join(
            f"{name}: {', '.join(f'K = {k} above {least:.4f}' for k, least in each) or 'none'}"
            for name, each in one["levels"].items()
        )
        blocks.append(f"T = {one['steps']}; {levels}")
        if "by_room" not in one:
            blocks.append(f"Not replayed: {one['why_not'] or 'the tables allow no start'}.")
            continue
        by_room, full = one["by_room"], one["by_room"][str(one["room"])]
        blocks.append(f"Budget: {one['room'] / one['state_bytes']:,.0f} fp16 states of a clip")
        heads = [share(int(room) / one["room"], 1) for room in by_room]
        rows = [
            [f"`{name}`", *(f"{each[name]['throughput']:.3f}" for each in by_room.values()),
             *(share(full[name][what], 1) for what in ("hit_rate", "of_pairs", "steps_saved")),
             *(share(full[name]["kept"][what], 1) for what in KEPT)]
            for name in COMPARED
        ]  # fmt: skip
        rows += [
            [title, *(f"{each[own]['throughput'] / each[other]['throughput']:.3f}" for each in by_room.values()),
             *[""] * (3 + len(KEPT))]
            for title, (own, other) in BESIDE.items()
        ]  # fmt: skip
        kept_heads = [f"{name} kept" for name in KEPT]
        blocks.append(
            table(["throughput (no cache = 1); budget", *heads, "hits", "by pairs", "steps saved", *kept_heads], rows)
        )
    return "\n\n".join(blocks)


def main(given: Sequence[str] | None = None) -> None:
    parser = replay_command_line(__doc__, "clip_equal")
    parser.add_argument("--alpha", type=float, default=0.9, help="alpha of the model's tables")
    parser.add_argument("--whole-levels", nargs="+", default=(), help="levels K:similarity of whole prompts instead")
    parser.add_argument("--pair-levels", nargs="+", default=(), help="levels K:similarity of pairs instead")
    asked = parser.parse_args(given)
    on, encoder = machine(), open_encoder(asked.encoder)
    with shown() as bar:
        found = all_tables(Replays(offered(asked), encoder, asked, bar), asked, encoder.hash)
    print(report(found))
    settings = settings_of(asked) | {"trace": asked.trace.name if asked.trace else "load.sessions, CLIPS"}
    record(asked.name, {"tables": found}, settings | {"encoder_hash": encoder.hash}, on=on, folder=asked.out)


if __name__ == "__main__":
    main()
