"""Read a trace of requests, with users and arrivals, from parquet, csv or jsonl."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from services.replay.traces.columns import Columns, read_columns
from shared.domain.errors import ConfigurationError, InvalidRequestError
from shared.domain.types import Size

DEFAULT_SIZE = Size(512, 512)
"""Size of every request in a trace without sizes."""
TIMES = ("arrival_s", "arrival")
HALF_PAIR = re.compile("[\ud800-\udfff]")
ORDER = ("timestamp", "channel", "seq")
SIDES = ("width", "height")
LARGEST = 65_536
"""Largest accepted side, pixels."""
MOST_FRAMES = 4096
PIXELS = f"must be a whole number of pixels from 1 to {LARGEST:,}"


@dataclass(frozen=True)
class Trace:
    """Requests in order of arrival, one row each."""

    prompts: tuple[str, ...]
    users: npt.NDArray[np.int64]
    """0 … users − 1, in order of their first request."""
    arrival_s: npt.NDArray[np.float64]
    """Seconds since the first request, ascending."""
    sizes: tuple[Size, ...]
    steps: npt.NDArray[np.int64] | None = None
    """T of each request; None: one T for all."""
    frames: int = 1
    """Frames of every request; more than one: clips."""

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, rows: slice) -> Trace:
        steps = None if self.steps is None else self.steps[rows]
        return replace(
            self,
            prompts=self.prompts[rows],
            users=self.users[rows],
            arrival_s=self.arrival_s[rows],
            sizes=self.sizes[rows],
            steps=steps,
        )

    def asked(self, steps: int) -> npt.NDArray[np.int64]:
        """Return T of each request, shape (requests,); `steps` if the trace has none."""
        return np.full(len(self), steps, np.int64) if self.steps is None else self.steps

    @cached_property
    def digest(self) -> str:
        """Return 16 hex digits over prompts and sizes in order, the inputs of neighbour lists."""
        total = hashlib.blake2b(digest_size=8)
        for prompt, size in zip(self.prompts, self.sizes, strict=True):
            total.update(f"{size}\0{prompt}\0".encode())
        return total.hexdigest()

    @property
    def mean_rate_per_s(self) -> float:
        """Return the mean requests a second; 1 for a trace without times."""
        lasts = float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) else 0.0
        return (len(self) - 1) / lasts if lasts > 0 else 1.0


def poisson(trace: Trace, rate_per_s: float, seed: int = 0) -> Trace:
    """Return the same requests in the same order, with arrivals of a Poisson process."""
    if not 0 < rate_per_s < np.inf:
        raise InvalidRequestError("rate", "must be positive and finite", rate_per_s)
    gaps = np.random.default_rng(seed).exponential(1 / rate_per_s, len(trace))
    return replace(trace, arrival_s=np.cumsum(gaps))


def read_trace(path: Path, most_steps: int | None = None) -> Trace:
    """Read the columns `prompt` and `user`, and optional columns.

    Optional are `arrival_s` (or `timestamp`, `channel`, `seq`; else the file's order), `width` with `height`, and
    `frames`, the same in all rows. With
    `most_steps` the column `steps` is needed too, each T from 1 to `most_steps`; None: `steps` is ignored.

    Raises ConfigurationError, with line and field, for a missing file and for wrong columns or values.
    """
    columns = read_columns(path)
    for name in ("prompt", "user", *(("steps",) if most_steps else ())):
        if name not in columns:
            names = ", ".join(columns.values) or "none"
            raise ConfigurationError(f"trace {path}: needs a column {name!r}; it has {names}")
    prompts = columns.checked("prompt", "must be text that is not blank", _is_prompt)
    asked_by = columns.checked("user", "must be a name or a whole number", _is_user)
    if not prompts:
        raise ConfigurationError(f"trace {path}: needs at least one request (got none)")
    order, arrival_s = _in_time(columns, len(prompts))
    codes: dict[Any, int] = {}
    users = [asked_by[row] for row in order]
    sizes = _sizes(columns)
    steps = _steps(columns, most_steps) if most_steps else None
    return Trace(
        prompts=tuple(prompts[row] for row in order),
        users=np.array([codes.setdefault(user, len(codes)) for user in users], np.int64),
        arrival_s=arrival_s,
        sizes=tuple(sizes[row] for row in order) if sizes else (DEFAULT_SIZE,) * len(prompts),
        steps=None if steps is None else steps[order],
        frames=_frames(columns),
    )


def _is_prompt(value: Any) -> bool:
    """Return whether the gateway would accept the prompt; half a surrogate pair is no text."""
    return isinstance(value, str) and bool(value.strip()) and not HALF_PAIR.search(value)


def _is_user(value: Any) -> bool:
    """Return whether the value names a user; a blank would merge all unnamed users into one."""
    if isinstance(value, str):
        return bool(value.strip())
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return whole and not isinstance(value, bool)


def _in_time(columns: Columns, count: int) -> tuple[Sequence[int], npt.NDArray[np.float64]]:
    """Return the rows' order in time, and the arrivals in that order."""
    name = next((name for name in TIMES if name in columns), "")
    if name:
        times = columns.numbers(name, "must be a number of seconds")
        order = np.argsort(times, kind="stable")
    elif ORDER[0] in columns:
        times = columns.times(ORDER[0])
        keys = [columns.numbers(key) for key in reversed(ORDER[1:]) if key in columns]
        order = np.lexsort([*keys, times])
    else:
        times, order = np.zeros(count), np.arange(count)
    return order.tolist(), times[order] - times[order[0]]


def _sizes(columns: Columns) -> list[Size]:
    if not any(name in columns for name in SIDES):
        return []
    columns.together(SIDES)
    widths, heights = (columns.numbers(name, PIXELS, 1, LARGEST, whole=True).astype(int).tolist() for name in SIDES)
    known: dict[tuple[int, int], Size] = {}
    return [known.setdefault(pair, Size(*pair)) for pair in zip(widths, heights, strict=True)]


def _frames(columns: Columns) -> int:
    if "frames" not in columns:
        return 1
    first = columns.values["frames"][0]
    rule = f"must be a whole number of frames from 1 to {MOST_FRAMES:,}"
    frames = columns.numbers("frames", rule, 1, MOST_FRAMES, whole=True)
    columns.checked("frames", "must be the same in all rows", lambda value: value == first)
    return int(frames[0])


def _steps(columns: Columns, most: int) -> npt.NDArray[np.int64]:
    rule = f"must be a whole number of steps from 1 to {most:,}"
    return columns.numbers("steps", rule, 1, most, whole=True).astype(np.int64)
