"""Tables that fit a terminal: whole if possible, else compact, with shortened texts and columns left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

WIDE = 10_000
"""Characters per line for pipes and files, where no terminal limits the width."""


@dataclass(frozen=True)
class Column:
    """One column, and the ways to shorten it. Without `least` and `leave` the column is whole at any width."""

    name: str
    least: int | None = None
    """Characters that a narrowed column keeps at least; None: the column is never narrowed."""
    leave: int = 0
    """Order in which columns are left out, the highest number first; 0: never."""
    one_line: bool = False
    """Cut the cells of a narrowed column with an ellipsis; else wrap them."""
    right: bool = False


def fitted(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str | Text]],
    width: int = WIDE,
    *,
    styles: Sequence[str] = (),
    title: str | None = None,
) -> Table:
    """Return the rows as a table of at most `width` characters, if its whole columns allow that.

    The caption names the columns that were left out. styles: one style per row.
    """
    needs = [_need(column, [row[at] for row in rows], whole=True) for at, column in enumerate(columns)]
    if sum(needs) + 3 * len(columns) + 1 <= width:
        return _table(columns, range(len(columns)), [None] * len(columns), rows, styles, title, compact=False)
    needs = [_need(column, [row[at] for row in rows], whole=False) for at, column in enumerate(columns)]
    kept = list(range(len(columns)))
    leaving = sorted((at for at in kept if columns[at].leave), key=lambda at: -columns[at].leave)
    while leaving and sum(_least(columns[at], needs[at]) for at in kept) + len(kept) - 1 > width:
        kept.remove(leaving.pop(0))
    table = _table(columns, kept, _shared_out(columns, kept, needs, width), rows, styles, title, compact=True)
    gone = [columns[at].name for at in range(len(columns)) if at not in kept and columns[at].name]
    if gone:
        table.caption = f"no room for: {', '.join(gone)} (a wider terminal, or a pipe, shows all)"
        table.caption_justify = "left"
    return table


def _need(column: Column, cells: Sequence[str | Text], *, whole: bool) -> int:
    """Return the width of the widest cell and heading; in a compact table headings break at their spaces."""
    heading = [column.name] if whole else column.name.split()
    texts = [Text(cell) if isinstance(cell, str) else cell for cell in (*heading, *cells)]
    return max((line.cell_len for text in texts for line in text.split("\n")), default=0)


def _least(column: Column, need: int) -> int:
    return need if column.least is None else min(need, column.least)


def _shared_out(columns: Sequence[Column], kept: Sequence[int], needs: Sequence[int], width: int) -> list[int | None]:
    """Return the width of each kept column; columns that may be narrowed share the remaining room equally."""
    got = {at: _least(columns[at], needs[at]) for at in kept}
    room = width - sum(got.values()) - (len(kept) - 1)
    while room > 0 and (short := [at for at in kept if got[at] < needs[at]]):
        for at in short[:room]:
            got[at] += 1
        room -= min(room, len(short))
    return [got[at] for at in kept]


def _table(
    columns: Sequence[Column],
    kept: Sequence[int],
    widths: Sequence[int | None],
    rows: Sequence[Sequence[str | Text]],
    styles: Sequence[str],
    title: str | None,
    *,
    compact: bool,
) -> Table:
    table = Table(
        box=None if compact else box.HEAVY_HEAD, collapse_padding=compact, pad_edge=not compact,
        title=title, title_justify="left",
    )  # fmt: skip
    for at, wide in zip(kept, widths, strict=True):
        column = columns[at]
        table.add_column(
            column.name,
            width=wide,
            justify="right" if column.right else "left",
            overflow="ellipsis" if column.one_line else "fold",
            no_wrap=column.one_line,
        )
    for number, row in enumerate(rows):
        table.add_row(*(row[at] for at in kept), style=styles[number] if styles else None)
    return table
