"""Measure the edit structure of a trace beside the project's own: `python -m load.measure_trace PATH`.

A large trace is also cut into windows as long as the project's own, with a random share of the users. The windows are
comparable with the project's trace. The real trace is measured only; nothing of it is copied.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

from load.edit_structure import Asked, measure
from load.sessions import SHIPPED, read_trace


def read_rows(path: Path) -> list[Asked]:
    """Read a trace: parquet (columns prompt, user, arrival_s, width, height; needs pandas) or the project's jsonl."""
    if path.suffix == ".parquet":
        import pandas

        table = pandas.read_parquet(path, columns=["prompt", "user", "arrival_s", "width", "height"])
        return [Asked(*row) for row in table.itertuples(index=False, name=None)]
    return [Asked(row.prompt, row.user, row.arrival_s, row.width, row.height) for row in read_trace(path)]


def windows(
    rows: Sequence[Asked], *, window_s: float, user_share: float, draws: int, seed: int = 0
) -> list[dict[str, float]]:
    """Return the statistics of `draws` random windows of `window_s` seconds, each with a random share of the users."""
    rng = random.Random(seed)
    users = sorted({row.user for row in rows})
    last = max(row.arrival_s for row in rows) - window_s
    measured = []
    for _ in range(draws):
        start = rng.uniform(0, max(last, 0))
        kept = {user for user in users if rng.random() < user_share}
        inside = [row for row in rows if start <= row.arrival_s < start + window_s and row.user in kept]
        measured.append(measure(inside))
    return measured


def table(
    whole: dict[str, float], cut: Sequence[dict[str, float]], made: dict[str, float]
) -> list[tuple[str, float, float, float, float]]:
    """Return rows of (statistic, whole trace, mean of windows, their standard deviation, the project's own)."""
    rows = []
    for name, value in whole.items():
        column = [window[name] for window in cut]
        rows.append((name, value, fmean(column), stdev(column) if len(column) > 1 else 0.0, made[name]))
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, help="trace to measure: parquet, or jsonl as load.sessions writes")
    parser.add_argument("--made", type=Path, default=SHIPPED, help="trace to compare with")
    parser.add_argument(
        "--window-h", type=float, default=0.0, help="hours of a window; 0: as long as the project's trace"
    )
    parser.add_argument("--user-share", type=float, default=0.125, help="share of the users in a window")
    parser.add_argument("--draws", type=int, default=40, help="windows to average over")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    chosen = parser.parse_args(arguments)
    for name, path in (("path", chosen.path), ("--made", chosen.made)):
        if not path.is_file():
            parser.error(f"{name}: no such file: {path}")
    rows, made = read_rows(chosen.path), read_rows(chosen.made)
    window_s = chosen.window_h * 3600 or made[-1].arrival_s - made[0].arrival_s
    cut = windows(rows, window_s=window_s, user_share=chosen.user_share, draws=chosen.draws)
    lines = table(measure(rows), cut, measure(made))
    print(f"| statistic | whole trace | windows of {window_s / 3600:.2g} h, {chosen.user_share:.3g} of users | made |")
    print("|---|---|---|---|")
    for name, whole, mean, spread, own in lines:
        print(f"| {name} | {whole:.4g} | {mean:.3g} ± {spread:.2g} | {own:.3g} |")
    if chosen.json:
        chosen.json.write_text(json.dumps({name: rest for name, *rest in lines}, indent=1))


if __name__ == "__main__":
    main()
