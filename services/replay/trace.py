"""A trace: who asked for what, in which order; read from parquet, csv or jsonl."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.errors import ConfigurationError, InvalidRequestError
from shared.types import Size

Columns = Mapping[str, Sequence[Any]]
DEFAULT_SIZE = Size(512, 512)
"""Of a trace that names none."""
TIMES = ("arrival_s", "arrival")
ORDER = ("timestamp", "channel", "seq")


@dataclass(frozen=True)
class Trace:
    """Requests in order of arrival, one row each."""

    prompts: tuple[str, ...]
    users: npt.NDArray[np.int64]
    """0 … users − 1, in order of their first request."""
    arrival_s: npt.NDArray[np.float64]
    """Seconds from the first request on; never goes back."""
    sizes: tuple[Size, ...]

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, rows: slice) -> Trace:
        return Trace(self.prompts[rows], self.users[rows], self.arrival_s[rows], self.sizes[rows])

    @cached_property
    def digest(self) -> str:
        """16 hex digits over prompts and sizes in order: what neighbour lists depend on."""
        total = hashlib.blake2b(digest_size=8)
        for prompt, size in zip(self.prompts, self.sizes, strict=True):
            total.update(f"{size}\0{prompt}\0".encode())
        return total.hexdigest()

    @property
    def mean_rate_per_s(self) -> float:
        """Requests a second; 1 where the trace has no times."""
        lasts = float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) else 0.0
        return (len(self) - 1) / lasts if lasts > 0 else 1.0


def poisson(trace: Trace, rate_per_s: float, seed: int = 0) -> Trace:
    """The same requests in the same order, with arrivals of a Poisson process."""
    if not 0 < rate_per_s < np.inf:
        raise InvalidRequestError("rate", "positive and finite", rate_per_s)
    gaps = np.random.default_rng(seed).exponential(1 / rate_per_s, len(trace))
    return replace(trace, arrival_s=np.cumsum(gaps))


def read_trace(path: Path) -> Trace:
    """Columns `prompt` and `user`, and where there are: `arrival_s` (else `timestamp`, `channel`, `seq`; else the
    order of the file), `width` and `height`.

    Raises ConfigurationError for a file that is not there or holds no such table.
    """
    columns = _columns(path)
    for name in ("prompt", "user"):
        if name not in columns:
            raise ConfigurationError(f"{path}: a trace needs a column {name!r}; it has {', '.join(columns) or 'none'}")
    count = len(columns["prompt"])
    if count == 0:
        raise ConfigurationError(f"{path}: no request in it")
    order, arrival_s = _in_time(path, columns, count)
    codes: dict[Any, int] = {}
    users = [columns["user"][row] for row in order]
    sizes = _sizes(path, columns)
    return Trace(
        prompts=tuple(str(columns["prompt"][row]) for row in order),
        users=np.array([codes.setdefault(user, len(codes)) for user in users], np.int64),
        arrival_s=arrival_s,
        sizes=tuple(sizes[row] for row in order) if sizes else (DEFAULT_SIZE,) * count,
    )


def _columns(path: Path) -> Columns:
    if not path.is_file():
        raise ConfigurationError(f"trace {path}: no such file")
    kinds = {".parquet": _parquet, ".csv": _csv, ".jsonl": _jsonl}
    if path.suffix not in kinds:
        raise ConfigurationError(f"trace {path}: must end in {', '.join(kinds)}")
    return kinds[path.suffix](path)


def _parquet(path: Path) -> Columns:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError as error:
        raise ConfigurationError(f"trace {path}: parquet needs pyarrow (pip install pyarrow)") from error
    try:
        columns: Columns = parquet.read_table(path).to_pydict()
    except ArrowInvalid as error:
        raise ConfigurationError(f"trace {path}: not a parquet file: {error}") from error
    return columns


def _csv(path: Path) -> Columns:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}


def _jsonl(path: Path) -> Columns:
    rows = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                rows.append(dict(json.loads(line)))
            except (ValueError, TypeError) as error:
                raise ConfigurationError(f"trace {path}, line {number}: not a JSON object") from error
    return {name: [row.get(name) for row in rows] for name in (rows[0] if rows else ())}


def _in_time(path: Path, columns: Columns, count: int) -> tuple[Sequence[int], npt.NDArray[np.float64]]:
    """The rows' order, and the arrivals in that order."""
    name = next((name for name in TIMES if name in columns), "")
    if name:
        times = _numbers(path, name, columns[name])
        order = np.argsort(times, kind="stable")
    elif ORDER[0] in columns:
        times = np.array(columns[ORDER[0]], dtype="datetime64[ms]").astype(np.float64) / 1000
        keys = [_numbers(path, key, columns[key]) for key in reversed(ORDER[1:]) if key in columns]
        order = np.lexsort([*keys, times])
    else:
        times, order = np.zeros(count), np.arange(count)
    return order.tolist(), times[order] - times[order[0]]


def _sizes(path: Path, columns: Columns) -> list[Size]:
    if "width" not in columns or "height" not in columns:
        return []
    widths, heights = (_numbers(path, name, columns[name]) for name in ("width", "height"))
    known: dict[tuple[int, int], Size] = {}
    pairs = zip(widths.astype(int).tolist(), heights.astype(int).tolist(), strict=True)
    return [known.setdefault(pair, Size(*pair)) for pair in pairs]


def _numbers(path: Path, name: str, values: Sequence[Any]) -> npt.NDArray[np.float64]:
    try:
        numbers = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"trace {path}, column {name!r}: {error}") from error
    if not np.isfinite(numbers).all():
        raise ConfigurationError(f"trace {path}, column {name!r}: a value is missing")
    return numbers
