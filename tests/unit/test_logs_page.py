"""Every warning and error that a service can log is in docs/reference/logs.md, with what to do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "logs.md"
TOOLS = ("services/trainer/", "services/cli/", "services/replay/")
"""Commands, not services: what they say is for who typed them."""


def events_of(source: str) -> Iterator[str]:
    """First arguments of `….warning("event", …)` and `….error(…)`; of an f-string its fixed beginning or end."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(attr="warning" | "error" | "exception" | "critical"), args=[first, *_]):
                yield from texts_of(first)


def texts_of(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            yield from (text for part in parts for text in texts_of(part))
        case ast.IfExp(body=one, orelse=other):
            yield from (*texts_of(one), *texts_of(other))


def test_the_reader_sees_events_however_they_are_written() -> None:
    source = """log("x").warning("gone", job=1); _log.error(f"{stage} failed"); log.warning("a" if b else "c")"""
    assert list(events_of(source)) == ["gone", " failed", "a", "c"]


def test_every_warning_and_error_has_its_row() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    page = "\n".join(row.split("|")[1] for row in rows)
    files = [path for top in ("services", "shared") for path in sorted((ROOT / top).rglob("*.py"))]
    found = {
        event: str(path.relative_to(ROOT))
        for path in files
        if not str(path.relative_to(ROOT)).startswith(TOOLS)
        for event in events_of(path.read_text(encoding="utf-8"))
    }
    assert len(found) > 40
    assert {event: path for event, path in found.items() if event not in page} == {}
