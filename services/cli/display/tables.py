"""Tables that fit a terminal: whole where there is room, else compact, texts shortened and columns left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

WIDE = 10_000
"""Characters a line may have where nobody's terminal has to hold it (pipes, files)."""


@dataclass(frozen=True)
class Column:
    """One column: what may be done to it where there is too little room. With neither `least` nor `leave` it is whole
    at any width."""

    name: str
    least: int | None = None
    """May be made narrower, down to this many characters."""
    leave: int = 0
    """May be left out, the highest first; 0: never."""
    one_line: bool = False
    """Narrower, it is cut with an ellipsis; else it is wrapped."""
    right: bool = False


def fitted(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str | Text]],
    width: int = WIDE,
    *,
    styles: Sequence[str] = (),
    title: str | None = None,
) -> Table:
    """The rows as a table of at most `width` characters, wherever its whole columns leave room for that; the caption
    names what was left out. styles: one a row."""
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
    """Characters of the widest cell; of the heading too, which breaks at its spaces where the table is compact."""
    heading = [column.name] if whole else column.name.split()
    texts = [Text(cell) if isinstance(cell, str) else cell for cell in (*heading, *cells)]
    return max((line.cell_len for text in texts for line in text.split("\n")), default=0)


def _least(column: Column, need: int) -> int:
    return need if column.least is None else min(need, column.least)


def _shared_out(columns: Sequence[Column], kept: Sequence[int], needs: Sequence[int], width: int) -> list[int | None]:
    """What each kept column gets: what it needs, or of those that may be narrower an equal share of what is left."""
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
