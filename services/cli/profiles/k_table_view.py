"""The table that `afterimage profile` prints for each α."""

from __future__ import annotations

from dataclasses import asdict

from rich.table import Table

from shared.models.k_table import KTable

ENOUGH_PAIRS = 400
"""Pairs below which a table may allow only small K, because its confidence bounds are too wide."""


def k_table_view(alpha: float, table: KTable) -> Table:
    """Return a table with one row per K and measured band of similarity; the first row of each K has its threshold."""
    floor = "" if table.floor is None else f", nothing starts at similarity {table.floor:.3f} or below"
    shown = Table(title=f"α = {alpha:g}{floor}", title_justify="left")
    for name in ("K", "starts above", "band", "rows", "CLIP ratio", "95 % bound", "changed kept", "from noise", "safe"):
        shown.add_column(name, justify="right")
    levels = {level.k: level.min_similarity for level in table.levels}
    last = None
    for cell in (asdict(cell) for cell in table.cells):
        threshold = f"{levels[cell['k']]:.3f}" if cell["k"] in levels else "never"
        shown.add_row(
            str(cell["k"]) if cell["k"] != last else "",
            threshold if cell["k"] != last else "",
            f"{cell['min_similarity']:.3f}–{cell['max_similarity']:.3f}",
            str(cell["count"]),
            f"{cell['mean_ratio']:.3f}",
            f"{cell['lower_bound']:.3f}",
            "–" if cell["kept"] is None else f"{cell['kept']:.2f}",
            "–" if cell["kept_from_noise"] is None else f"{cell['kept_from_noise']:.2f}",
            "yes" if cell["safe"] else "no",
        )
        last = cell["k"]
    return shown


def nothing_safe(alpha: float, pairs: int) -> str:
    """Return the meaning of a table without a level, and its likely cause."""
    few = f"; {pairs} pairs prove little, use 400 or more" if pairs < ENOUGH_PAIRS else ""
    return f"α = {alpha:g}: no K is safe by these {pairs} pairs, so this table lets no image start from another{few}"
