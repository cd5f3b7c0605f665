"""Workers in virtual time: who takes what from which lane when, on measured latencies and without drawing anything."""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from services.gpu_worker.duty import Duty, lanes
from shared.messages import lane_of

STEPS = 50


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds of one step of a full batch for each row in it, and of decoding a picture; per model."""

    step_s: float
    decode_s: float
    batch_s: float
    """Of one step of the whole batch: what a drain waits for."""

    def seconds(self, k: int) -> float:
        """Of the worker's time that a request costs which starts after k of 50 steps."""
        return (STEPS - k) * self.step_s + self.decode_s

    @property
    def drain_s(self) -> float:
        """Time lost by a switch: rows of a full batch end one after the other through a whole generation, so half of
        the batch is empty on average."""
        return STEPS * self.batch_s / 2


@dataclass(frozen=True, slots=True)
class Request:
    """`k` of 50 steps are saved where it hits; 0 is a miss."""

    number: int
    at: float
    k: int


@dataclass(slots=True)
class Worker:
    name: str
    duty: Duty
    wanted: Duty
    busy: bool = False
    switching: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """A request that was served."""

    request: Request
    at: float
    worker: str
    model: str


@dataclass
class Workers:
    """Each serves one request at a time, as fast as a full batch serves each of its rows.

    on_done hears what was served, on_model a worker that has changed its model; both at their virtual time.
    """

    served: tuple[str, ...]
    """Models, the large one first."""
    speeds: dict[str, Speed]
    count: int
    lane_for: Callable[[Request], str]
    on_done: Callable[[Done], None]
    on_model: Callable[[Worker, float], None] = lambda worker, at: None
    workers: list[Worker] = field(init=False)
    waiting: dict[str, deque[Request]] = field(default_factory=lambda: defaultdict(deque))
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: Iterator[int] = field(default_factory=itertools.count)
    now: float = 0.0

    def __post_init__(self) -> None:
        first = Duty(self.served[0], frozenset({self.served[0]}))
        self.workers = [Worker(f"w{number:02}", first, first) for number in range(self.count)]

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), what))

    def run(self, requests: Iterable[Request], arrived: Callable[[Request], None], until: float) -> None:
        for request in requests:
            self._until(request.at)
            arrived(request)
            self.waiting[self.lane_for(request)].append(request)
            self._wake()
        self._until(until)

    def _until(self, when: float) -> None:
        while self._events and self._events[0][0] <= when:
            self.now, _, what = heapq.heappop(self._events)
            what()
        self.now = when

    def assign(self, duties: dict[str, Duty]) -> None:
        """What each worker is to do; who changes its model finishes what it has first."""
        for worker in self.workers:
            worker.wanted = duties[worker.name]
            if worker.wanted.model == worker.duty.model:
                worker.duty = worker.wanted
        self._wake()

    def _wake(self) -> None:
        """Small models first, as they can do nothing else."""
        for worker in sorted(self.workers, key=lambda one: one.duty.model == self.served[0]):
            self._next(worker)

    def _next(self, worker: Worker) -> None:
        if worker.busy or worker.switching:
            return
        if worker.wanted.model != worker.duty.model:
            worker.switching = True
            self.at(self.now + self.speeds[worker.duty.model].drain_s, lambda: self._switched(worker))
            return
        for lane in lanes(worker.duty, self.served, self.served):
            if self.waiting[lane]:
                self._serve(worker, self.waiting[lane].popleft(), lane)
                return

    def _serve(self, worker: Worker, request: Request, lane: str) -> None:
        model = next((one for one in self.served if lane == lane_of(one)), worker.duty.model)
        worker.busy = True
        self.at(self.now + self.speeds[model].seconds(request.k), lambda: self._done(worker, request, model))

    def _done(self, worker: Worker, request: Request, model: str) -> None:
        worker.busy = False
        self.on_done(Done(request, self.now, worker.name, model))
        self._next(worker)

    def _switched(self, worker: Worker) -> None:
        worker.switching, worker.duty = False, worker.wanted
        self.on_model(worker, self.now)
        self._next(worker)
