"""Read a trace's file as columns (parquet, csv or jsonl); errors name the file, the line and the field."""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.domain.errors import ConfigurationError

Floats = npt.NDArray[np.float64]
LATEST_S = 1e11
"""Largest accepted seconds since 1970 (the year 5138); a larger number is in milliseconds or smaller units."""


@dataclass(frozen=True)
class Columns:
    """Values of each column, one per request; None for a missing value."""

    path: Path
    values: dict[str, list[Any]]
    lines: Sequence[int] = field(default=())
    """Line of each row in the file; empty: rows are counted from 1."""

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def bad(self, name: str, row: int, rule: str) -> ConfigurationError:
        """Return the error for one value that breaks `rule`."""
        place = f"line {self.lines[row]}" if self.lines else f"row {row + 1}"
        value = self._value(name, row)
        got = "no value" if value is None else f"got {str(value)[:80]!r}"
        return ConfigurationError(f"trace {self.path}, {place}, field {name!r}: {rule} ({got})")

    def checked(self, name: str, rule: str, right: Callable[[Any], bool]) -> list[Any]:
        """Return the column; raise the error of `bad` for the first value that is not `right`."""
        for row, value in enumerate(self.values[name]):
            if not right(value):
                raise self.bad(name, row, rule)
        return self.values[name]

    def together(self, names: Sequence[str]) -> None:
        """Check that each row has values in all of these columns or in none."""
        for row in range(max((len(self.values[name]) for name in names if name in self), default=0)):
            there = [name for name in names if self._value(name, row) is not None]
            if there and len(there) < len(names):
                missing = next(name for name in names if name not in there)
                raise self.bad(missing, row, f"must be given together with {there[0]!r}, or neither of them")

    def numbers(
        self,
        name: str,
        rule: str = "must be a number",
        least: float = -np.inf,
        most: float = np.inf,
        *,
        whole: bool = False,
    ) -> Floats:
        """Return the column as finite numbers (with `whole`: whole numbers) from `least` to `most`."""
        return self._each(name, rule, lambda value: _within(float(value), least, most, whole))

    def times(self, name: str) -> Floats:
        """Return the column as seconds since 1970, from dates, ISO 8601 (UTC without a zone), or seconds."""
        return self._each(name, "must be a date and time (ISO 8601) or seconds since 1970", _seconds)

    def _value(self, name: str, row: int) -> Any:
        return self.values[name][row] if name in self else None

    def _each(self, name: str, rule: str, of: Callable[[Any], float]) -> Floats:
        numbers = np.empty(len(self.values[name]))
        for row, value in enumerate(self.values[name]):
            try:
                numbers[row] = np.nan if isinstance(value, bool) else of(value)
            except (TypeError, ValueError, OverflowError):
                numbers[row] = np.nan
            if not np.isfinite(numbers[row]):
                raise self.bad(name, row, rule)
        return numbers


def _within(number: float, least: float, most: float, whole: bool) -> float:
    return number if least <= number <= most and (not whole or number.is_integer()) else np.nan


def _seconds(value: Any) -> float:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            value = datetime.fromisoformat(value.strip())
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC).timestamp()
    return float(value) if abs(value) < LATEST_S else np.nan


def read_columns(path: Path) -> Columns:
    """Read the file by its ending; raises ConfigurationError for a missing file and for a wrong format."""
    if not path.is_file():
        raise ConfigurationError(f"trace {path}: no such file")
    kinds = {".parquet": _parquet, ".csv": _csv, ".jsonl": _jsonl}
    if path.suffix not in kinds:
        raise ConfigurationError(f"trace {path}: must end in {', '.join(kinds)}")
    return kinds[path.suffix](path)


def _parquet(path: Path) -> Columns:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise ConfigurationError(f"trace {path}: parquet needs pyarrow (pip install pyarrow)") from error
    try:
        return Columns(path, parquet.read_table(path).to_pydict())
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"trace {path}: not a parquet file: {error}") from error


def _csv(path: Path) -> Columns:
    reader = csv.DictReader(io.StringIO(_text(path), newline=""), strict=True)
    rows, lines = [], []
    try:
        names = list(reader.fieldnames or ())
        for row in reader:
            if None in row:
                rule = f"must have at most the {len(names)} fields of the first line"
                raise ConfigurationError(f"trace {path}, line {reader.line_num}: {rule}")
            rows.append(row)
            lines.append(reader.line_num)
    except csv.Error as error:
        raise ConfigurationError(f"trace {path}, line {reader.line_num}: not csv: {error}") from error
    return Columns(path, {name: [row[name] or None for row in rows] for name in names}, lines)


def _jsonl(path: Path) -> Columns:
    rows, lines = [], []
    for number, line in enumerate(_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(f"trace {path}, line {number}: not a JSON object") from error
        if not isinstance(row, dict):
            raise ConfigurationError(f"trace {path}, line {number}: not a JSON object")
        rows.append(row)
        lines.append(number)
    names = dict.fromkeys(name for row in rows for name in row)
    return Columns(path, {name: [row.get(name) for row in rows] for name in names}, lines)


def _text(path: Path) -> str:
    """Return the file's text without a byte order mark."""
    data = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        rule = f"must be UTF-8 (byte 0x{data[error.start]:02x} is not)"
        raise ConfigurationError(f"trace {path}, line {line}: {rule}") from error
