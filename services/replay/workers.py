"""Workers in virtual time: which row is in which step when, by the code that schedules and on a measured latency."""

from __future__ import annotations

import heapq
import itertools
import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from services.gpu_worker.duty import Duty, lanes
from services.gpu_worker.scheduler import decide
from shared.errors import ConfigurationError
from shared.models.card import find_card
from shared.models.latency import FILE


@dataclass(frozen=True)
class Profile:
    """What `afterimage profile` measured of a model: seconds of a step by rows in the batch, and of a decoding."""

    model: str
    rows: tuple[int, ...]
    """Rising."""
    step_s: tuple[float, ...]
    decode_s: float

    def of(self, rows: int) -> float:
        """Seconds of one step; between what was measured as on a line, beyond it as much more per row as at its end."""
        if rows <= self.rows[-1] or len(self.rows) == 1:
            return float(np.interp(rows, self.rows, self.step_s)) * max(1.0, rows / self.rows[-1])
        slope = (self.step_s[-1] - self.step_s[-2]) / (self.rows[-1] - self.rows[-2])
        return self.step_s[-1] + slope * (rows - self.rows[-1])

    def alone_s(self, steps: int) -> float:
        """Of a picture from noise on an idle worker: what SLOs are multiples of (MoDM §6)."""
        return steps * self.of(1) + self.decode_s


def read_profile(name: str) -> Profile:
    """`latency.json` beside a model's weights (bundled:NAME, a folder, a hub id), or a file like it (.json).

    Raises ConfigurationError where there is none, or it is no latency; ModelError for a model that is not there.
    """
    path = Path(name) if name.endswith(".json") else find_card(name).folder / FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        by_rows = sorted((int(rows), float(seconds)) for rows, seconds in found["step_s"].items())
        decode_s = float(found["decode_s"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"profile {name!r}: no measured latency in {path} ({error!r})") from error
    if not by_rows or by_rows[0][0] < 1 or min(seconds for _, seconds in by_rows) <= 0 or decode_s < 0:
        raise ConfigurationError(f"profile {name!r}: {path} has no step of a positive time")
    rows, seconds = zip(*by_rows, strict=True)
    return Profile(path.parent.name if name.endswith(".json") else find_card(name).name, rows, seconds, decode_s)


@dataclass(slots=True)
class Row:
    """One request in a worker's hands; the scheduler reads it as it reads a task."""

    number: int
    steps: int
    """Left to run."""
    arrived: int
    joined_at: float = -1.0
    id: str = ""
    priority: int = 0
    deadline_at: float | None = None
    drop_if_late: bool = False
    alone: bool = False


@dataclass(slots=True)
class Worker:
    """One batch; between two changes of its rows all steps take equally long."""

    name: str
    lane: str
    rows: list[Row] = field(default_factory=list)
    begun_at: float = 0.0
    step_s: float = 0.0
    stretch: int = 0
    """Number of the present stretch of equal steps: events of an earlier one are void."""
    running: bool = False
    decoding: bool = False
    busy_s: float = 0.0
    row_s: float = 0.0
    """Seconds times rows."""


@dataclass
class Workers:
    """`on_done` hears (request, when it joined, when it was finished) at that virtual time."""

    profile: Profile
    count: int
    max_rows: int
    on_done: Callable[[int, float, float], None]
    now: float = 0.0
    waiting: deque[Row] = field(default_factory=deque)
    longest: int = 0
    """Queue there ever was."""
    workers: list[Worker] = field(init=False)
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: Iterator[int] = field(default_factory=itertools.count)
    _turn: int = 0

    def __post_init__(self) -> None:
        model = self.profile.model
        # with one model served all waits in its own lane, hits as misses (services.gateway.lanes)
        (lane,) = lanes(Duty(model, frozenset({model})), (model,), (model,))
        self.workers = [Worker(f"w{number:02}", lane) for number in range(self.count)]

    def until(self, when: float) -> None:
        """Everything that happens up to then."""
        while self._events and self._events[0][0] <= when:
            self.now, _, what = heapq.heappop(self._events)
            what()
        self.now = max(self.now, when)

    def finish(self) -> None:
        """Until nobody waits."""
        while self._events:
            self.until(self._events[0][0])

    def arrive(self, number: int, steps: int) -> None:
        """A request with so many steps to run, now; 0: nothing to draw."""
        if steps <= 0:
            self.on_done(number, self.now, self.now)
            return
        self.waiting.append(Row(number, steps, number, id=str(number)))
        self.longest = max(self.longest, len(self.waiting))
        self._deliver()

    def _deliver(self) -> None:
        """In turns to those with a free row, as a broker does (prefetch: as many as there are rows)."""
        for _ in range(self.count):
            worker = self.workers[self._turn]
            self._turn = (self._turn + 1) % self.count
            if self.waiting and len(worker.rows) < self.max_rows:
                if not worker.running:
                    self._join(worker)
                elif not worker.decoding:  # else they join when that is over
                    self._cut(worker)
                return

    def _cut(self, worker: Worker) -> None:
        """Newcomers join before the next step: the stretch ends there."""
        steps = max(1, math.ceil((self.now - worker.begun_at) / worker.step_s - 1e-9))
        self._end_after(worker, steps)

    def _join(self, worker: Worker) -> None:
        """Takes what there is room for, and runs until a row is done."""
        worker.decoding = False
        here = [self.waiting.popleft() for _ in range(min(self.max_rows - len(worker.rows), len(self.waiting)))]
        joining = set(decide(here, worker.rows, frozenset(), self.now, self.max_rows).join) if here else set()
        self.waiting.extendleft(row for row in reversed(here) if row.id not in joining)
        for row in here:
            if row.id in joining:
                row.joined_at = self.now
                worker.rows.append(row)
        worker.running = bool(worker.rows)
        if worker.running:
            worker.begun_at, worker.step_s = self.now, self.profile.of(len(worker.rows))
            self._end_after(worker, min(row.steps for row in worker.rows))

    def _end_after(self, worker: Worker, steps: int) -> None:
        worker.stretch += 1
        self._at(worker.begun_at + steps * worker.step_s, partial(self._stretched, worker, worker.stretch, steps))

    def _stretched(self, worker: Worker, stretch: int, steps: int) -> None:
        if stretch != worker.stretch:
            return
        worker.busy_s += steps * worker.step_s
        worker.row_s += steps * worker.step_s * len(worker.rows)
        for row in worker.rows:
            row.steps -= steps
        done = [row for row in worker.rows if row.steps <= 0]
        worker.rows = [row for row in worker.rows if row.steps > 0]
        if not done:
            self._join(worker)
            return
        worker.busy_s += len(done) * self.profile.decode_s
        for place, row in enumerate(done, 1):  # one after the other, and no step meanwhile
            at = self.now + place * self.profile.decode_s
            self._at(at, partial(self.on_done, row.number, row.joined_at, at))
        worker.decoding = True
        self._at(self.now + len(done) * self.profile.decode_s, partial(self._join, worker))

    def _at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), what))


def slo_s(profile: Profile, steps: int, times: Sequence[float]) -> list[float]:
    """Seconds that a request may take: multiples of a picture drawn alone (MoDM §6: 2 and 4)."""
    return [multiple * profile.alone_s(steps) for multiple in times]
