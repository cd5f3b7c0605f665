"""Markdown for the generated pages: tables with short cells, and texts of the code made safe for a page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

CELL_WORDS = 25
"""Maximum number of words in a table cell; further sentences go below the table."""
NAMES = re.compile(r"(?<![\w-])((?:AFTERIMAGE_[A-Z_]+|afterimage_[a-z_]+|--[a-z][a-z-]+)(?![\w…]))")
"""Variables, metrics and options: shown as code."""


def prose(text: str) -> str:
    """Return a docstring or help text as Markdown: one line per paragraph, no HTML tags, ``[bold]`` as Markdown."""
    text = re.sub(r"\[bold\](afterimage .*?)\[/bold\]", r"`\1`", text.replace("``", "`"))
    text = re.sub(r"\[/?bold\]", "**", text)
    paragraphs = [" ".join(one.split()) for one in text.split("\n\n") if one.strip()]
    parts = re.split(r"(`[^`]*`)", "\n\n".join(paragraphs))
    safe = (part if part.startswith("`") else NAMES.sub(r"`\1`", part.replace("<", "&lt;")) for part in parts)
    return "".join(safe)


def cut(text: str) -> tuple[str, str]:
    """Return the sentences that fit into a cell, at least the first one, and the rest."""
    head, *rest = re.split(r"(?<=[.!?])\s+(?=[A-Z`\d])", text.replace("\n\n", " "))
    while rest and len(f"{head} {rest[0]}".split()) <= CELL_WORDS:
        head = f"{head} {rest.pop(0)}"
    return head, " ".join(rest)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose last column is prose. Text that does not fit into a cell follows the table as a list.

    The first cell of a row names the row in that list.
    """
    lines, notes = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)], []
    for *cells, text in rows:
        head, rest = cut(text)
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in (*cells, head)) + " |")
        notes += [f"- {cells[0]}: {rest}"] if rest else []
    return "\n".join([*lines, *(["", *notes] if notes else [])]) + "\n"


def code(text: object) -> str:
    """Return a value as inline code, or an empty cell."""
    return f"`{text}`" if str(text) else ""
