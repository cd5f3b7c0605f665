"""Workers in virtual time: who takes what from which lane when, on measured latencies and without drawing anything.

The decisions are the services' own: the gateway's lane, the worker's lanes and models for its duty, and who draws what
several may (gateway/lanes.py, gpu_worker/duty.py, gpu_worker/starts.py). Only time is made up here.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from services.gateway.lanes import instead, lane_for
from services.gpu_worker.duty import Duty, lanes, preferred, used
from services.gpu_worker.starts import taken_by
from shared.messages import lane_of
from shared.misses import from_noise
from shared.types import Plan, PlanSource, Size
from shared.types import Request as Asked

STEPS = 50
ASKED = Asked(prompt="", size=Size(64, 64), steps=STEPS, guidance=1.0, seed=0)
"""What a request says of itself as far as its lane goes: it names no model."""


@dataclass(frozen=True)
class Speed:
    """Seconds of one model on one worker."""

    step_s: Mapping[int, float]
    """Of a step, by rows in the batch."""
    decode_s: float = 0.0
    """Of a picture, which its batch waits for; bringing one into a latent takes as long (a VAE's halves are alike)."""

    def step(self, rows: int) -> float:
        """Linear between what was measured, and beyond it."""
        return _between(tuple(sorted(self.step_s.items())), rows)

    def alone(self, steps: int = STEPS) -> float:
        """Of a request with an idle worker to itself."""
        return steps * self.step(1) + self.decode_s

    def share(self, rows: int, steps: int = STEPS) -> float:
        """Of the worker's time that a request takes in a full batch."""
        return steps * self.step(rows) / rows + self.decode_s


@lru_cache(maxsize=1024)
def _between(points: tuple[tuple[int, float], ...], rows: int) -> float:
    known = dict(points)
    if rows in known or len(points) == 1:
        return known.get(rows, points[0][1] * rows / points[0][0])
    above = next((at for at, (n, _) in enumerate(points) if n > rows), len(points) - 1)
    (n0, s0), (n1, s1) = points[max(above, 1) - 1], points[max(above, 1)]
    return s0 + (s1 - s0) * (rows - n0) / (n1 - n0)


@dataclass(frozen=True, slots=True)
class Request:
    """`plan` of `steps` steps."""

    number: int
    at: float
    plan: Plan
    steps: int = STEPS

    @property
    def is_hit(self) -> bool:
        return self.plan.source is not PlanSource.NOISE


Takes = tuple[tuple[str, ...], dict[str, Any], tuple[str, ...]]
"""What a duty means: the lanes, the families that draw, and which of them first."""


@dataclass(slots=True)
class Worker:
    name: str
    duty: Duty
    wanted: Duty
    rows: dict[str, list[tuple[int, int, Request]]] = field(default_factory=dict)
    """By model, a heap of (the worker's step after which it ends, number, request with the plan as it is run)."""
    ran: int = 0
    """Steps so far."""
    in_hand: int = 0
    stepping: bool = False
    takes: Takes = ((), {}, ())


@dataclass(frozen=True, slots=True)
class Done:
    """A request that was served."""

    request: Request
    at: float
    worker: str
    model: str
    steps_run: int

    @property
    def seconds(self) -> float:
        return self.at - self.request.at


@dataclass
class Workers:
    """Each steps all its rows together and lets requests join and leave between steps, as the engine does; both models
    are loaded everywhere. on_done hears what was served, on_model a worker that has changed its model."""

    served: tuple[str, ...]
    """Models, the large one first."""
    speeds: Mapping[str, Speed]
    count: int
    on_done: Callable[[Done], None]
    on_model: Callable[[Worker, float], None] = lambda worker, at: None
    max_rows: int = 8
    mode: str = "quality"
    workers: list[Worker] = field(init=False)
    waiting: dict[str, deque[Request]] = field(default_factory=lambda: defaultdict(deque))
    moved: int = 0
    """Requests that went on to another lane, because whoever took them from `refine` may not draw them."""
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: Iterator[int] = field(default_factory=itertools.count)
    now: float = 0.0

    def __post_init__(self) -> None:
        first = Duty(self.served[0], frozenset({self.served[0]}), self.mode)
        self.workers = [Worker(f"w{number:02}", first, first) for number in range(self.count)]
        # a family says who it is and of which weights; plans made here name none
        self._families: dict[str, Any] = {
            model: SimpleNamespace(card=SimpleNamespace(weights_hash="")) for model in self.served
        }
        for worker in self.workers:
            self._set(worker, first)

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), what))

    def run(self, requests: Iterable[Request], arrived: Callable[[Request, str], None], until: float) -> None:
        """`arrived` hears of every request and its lane before anyone can take it."""
        for request in requests:
            self._until(request.at)
            assigned = {worker.duty.model for worker in self.workers}
            plan = instead(request.plan, assigned)
            request = request if plan is request.plan else replace(request, plan=plan)
            lane = lane_for(ASKED, request.plan, self.served)
            arrived(request, lane)
            self._put(lane, request)
        self._until(until)

    def _until(self, when: float) -> None:
        while self._events and self._events[0][0] <= when:
            self.now, _, what = heapq.heappop(self._events)
            what()
        self.now = when

    def assign(self, duties: Mapping[str, Duty]) -> None:
        """What each worker is to do; who changes its model finishes what it has first."""
        for worker in self.workers:
            worker.wanted = duties[worker.name]
            if worker.wanted.model == worker.duty.model:
                self._set(worker, worker.wanted)
        self._wake()

    def _put(self, lane: str, request: Request) -> None:
        self.waiting[lane].append(request)
        self._wake()

    def _wake(self) -> None:
        """Those with nothing in hand; small models first, as they can do nothing else."""
        idle = [worker for worker in self.workers if not worker.stepping]
        if not idle:
            return
        for worker in sorted(idle, key=lambda one: one.duty.model == self.served[0]):
            if not worker.stepping:
                self._between_steps(worker)

    def _between_steps(self, worker: Worker) -> None:
        """Joins what there is room for, and runs the next step; an empty worker that is to switch does."""
        worker.stepping = True
        encode_s, switches = 0.0, worker.wanted.model != worker.duty.model
        if switches and not worker.in_hand:
            self._set(worker, worker.wanted)
            switches = False
            self.on_model(worker, self.now)
        while not switches and worker.in_hand < self.max_rows and (request := self._taken(worker)) is not None:
            left = request.steps - request.plan.start_step
            heap = worker.rows.setdefault(request.plan.model, [])
            heapq.heappush(heap, (worker.ran + left, request.number, request))
            worker.in_hand += 1
            if request.plan.source is PlanSource.IMAGE:
                encode_s += self.speeds[request.plan.model].decode_s
        if not worker.in_hand:
            worker.stepping = False
            return
        # nobody joins a full batch before someone leaves it, nor one that drains
        steps = 1
        if switches or worker.in_hand == self.max_rows:
            steps = min(heap[0][0] for heap in worker.rows.values() if heap) - worker.ran
        each = sum(self.speeds[model].step(len(heap)) for model, heap in worker.rows.items() if heap)
        self.at(self.now + encode_s + steps * each, lambda: self._stepped(worker, steps))

    def _stepped(self, worker: Worker, steps: int) -> None:
        """Pictures that are ready are decoded one after the other, and the batch waits."""
        worker.ran += steps
        ready, at = [], self.now
        for model, heap in worker.rows.items():
            while heap and heap[0][0] <= worker.ran:
                request = heapq.heappop(heap)[2]
                worker.in_hand -= 1
                at += self.speeds[model].decode_s
                ready.append((at, model, request))
        if not ready:
            self._between_steps(worker)
            return
        for done_at, model, request in ready:
            run = request.steps - request.plan.start_step
            self.at(done_at, lambda one=Done(request, done_at, worker.name, model, run): self.on_done(one))  # type: ignore[misc]
        self.at(at, lambda: self._between_steps(worker))

    def _taken(self, worker: Worker) -> Request | None:
        """The next from its lanes, with the plan of whoever draws it here; None: they are empty."""
        takes, families, first = worker.takes
        while (lane := next((lane for lane in takes if self.waiting[lane]), None)) is not None:
            request = self.waiting[lane].popleft()
            plan = taken_by(request.plan, families, first)
            if plan.model in families:
                return replace(request, plan=plan)
            self._move(request, worker.duty)
        return None

    def _set(self, worker: Worker, duty: Duty) -> None:
        families = {model: self._families[model] for model in used(duty, self.served, self.served)}
        worker.duty = duty
        worker.takes = lanes(duty, self.served, self.served), families, preferred(duty, self.served, self.served)

    def _move(self, request: Request, duty: Duty) -> None:
        """To the lane of the first model that may draw it and that some worker runs, else a miss (gpu_worker/starts,
        `_elsewhere`)."""
        self.moved += 1
        there = next((one for one in request.plan.may_run if one.model in duty.assigned), None)
        plan = (
            replace(request.plan, model=there.model, start_step=there.start_step)
            if there
            else from_noise(request.plan, "workers: nobody runs it", "")
        )
        self._put(lane_of(plan.model), replace(request, plan=plan))


def served_together(done: Sequence[Done], since: float, until: float) -> float:
    """Requests a second between two times, counting only those whose predecessors are served too: no kind of request
    is served at the cost of another."""
    served = {one.request.number: one.at for one in done}
    counts = [0, 0]
    for place, end in enumerate((since, until)):
        number = counts[0]
        while served.get(number + 1, float("inf")) <= end:
            number += 1
        counts[place] = number
    return (counts[1] - counts[0]) / (until - since)
