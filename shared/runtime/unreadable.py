"""Rows that only another version of Afterimage can read: reported once, skipped, and left unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any, TypeVar

from pydantic import ValidationError

from shared.domain.errors import UnreadableRowError
from shared.runtime.telemetry import METRICS, log

T = TypeVar("T")

REMEMBERED = 100_000
"""Maximum number of rows that this process logs. Further rows are skipped without a log line; otherwise each sweep
would log all of them."""
_reported: dict[tuple[str, str], None] = {}
_lock = Lock()
"""Guards `_reported`: several threads read rows."""


def readable(rows: Iterable[Any], read: Callable[[Any], T]) -> list[T]:
    """Return the rows as values, without those for which `read` raises UnreadableRowError."""
    values = []
    for row in rows:
        try:
            values.append(read(row))
        except UnreadableRowError:
            continue
    return values


def unreadable(table: str, row_id: str, error: Exception, tenant: str = "") -> UnreadableRowError:
    """Return the error to raise for a row; log and count the first error of each row."""
    why = _why(error)
    with _lock:
        if new := (table, row_id) not in _reported and len(_reported) < REMEMBERED:
            _reported[table, row_id] = None
    if new:
        METRICS.unreadable_rows.labels(table).inc()
        log("catalog").warning("row set aside: only a newer version can read it", table=table, row=row_id, why=why)
    return UnreadableRowError(f"{_NOUNS.get(table, table)} {row_id!r}", why, tenant)


def was_reported(table: str, row_id: str) -> bool:
    """Return whether this process has failed to read the row."""
    return (table, row_id) in _reported


_NOUNS = {"jobs": "job", "entries": "entry", "profiles": "profile", "vectors": "the vectors of entry"}


def _why(error: Exception) -> str:
    """Return the field and its fault, without the text of a prompt."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    got = f" (got {str(first['input'])[:80]!r})" if first["type"] == "enum" else ""
    return f"{'.'.join([error.title.lower(), *map(str, first['loc'])])}: {first['msg']}{got}"
