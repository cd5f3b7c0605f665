"""Simulate workers in virtual time on measured latencies: the step of each row, and the lanes that each worker serves.

No image is generated, and only time is simulated. The serving code decides lanes, model assignments, the model of a
request that several may serve, and the rows of a batch (shared/domain/plan_rules.py; gpu_worker's model_assignment.py
and scheduler.py). Replays run these workers with one model. bench/virtual_time/virtual_systems.py runs them with
several models and the global monitor.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from services.gpu_worker.engine.scheduler import decide
from services.gpu_worker.models.model_assignment import ModelAssignment, lanes, preferred, used
from services.replay.simulated.pace import STEPS, Profile
from services.replay.simulated.worker_state import Done, Request, Row, Worker
from shared.domain.messages import lane_of
from shared.domain.plan_rules import choose_model, hand_over, lane_for, use_fallback
from shared.domain.types import PlanSource, Size
from shared.domain.types import Request as Asked

ASKED = Asked(prompt="", size=Size(64, 64), steps=STEPS, guidance=1.0, seed=0)
"""A request that names no model; `lane_for` reads nothing else of it."""


@dataclass
class Workers:
    """Workers that step all their rows together, with all models loaded everywhere.

    Requests join and leave between steps, as in the engine. `on_done` is called with each served request, and
    `on_model` with a worker that changed its model.

    With `in_turns` the requests of the one lane go to the workers with free rows in turn, as a broker pushes messages.
    Otherwise workers with free rows take requests themselves, idle workers first, as consumers of several lanes do
    (shared/bus/rabbitmq/receiving.py).
    """

    served: tuple[str, ...]
    """Models, the large one first."""
    profiles: Mapping[str, Profile]
    count: int
    on_done: Callable[[Done], None]
    on_model: Callable[[Worker, float], None] = lambda worker, at: None
    max_rows: int = 8
    mode: str = "quality"
    in_turns: bool = False
    now: float = 0.0
    workers: list[Worker] = field(init=False)
    waiting: dict[str, deque[Row]] = field(default_factory=lambda: defaultdict(deque))
    longest: int = 0
    """Length of the longest queue so far."""
    moved: int = 0
    """Requests moved from `refine` to another lane, because the worker that took them had no allowed model."""
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: Iterator[int] = field(default_factory=itertools.count)
    _turn: int = 0

    def __post_init__(self) -> None:
        first = ModelAssignment(self.served[0], frozenset({self.served[0]}), self.mode)
        self.workers = [Worker(f"w{number:02}", first, first) for number in range(self.count)]
        for worker in self.workers:
            self._set(worker, first)

    # ---- time ----

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), what))

    def until(self, when: float) -> None:
        """Run every event up to `when`."""
        while self._events and self._events[0][0] <= when:
            self.now, _, what = heapq.heappop(self._events)
            what()
        self.now = max(self.now, when)

    def until_free(self) -> None:
        """Run events until some worker has a free row."""
        while self._events and self._rows_taken() >= self.count * self.max_rows:
            self.until(self._events[0][0])

    def _rows_taken(self) -> int:
        """Return the rows in work, those of waiting requests, and all rows of workers that decode."""
        own = [self.max_rows if worker.shut else worker.in_hand for worker in self.workers]
        return sum(own) + sum(len(lane) for lane in self.waiting.values())

    def finish(self) -> None:
        """Run until no event is left."""
        while self._events:
            self.until(self._events[0][0])

    def run(self, requests: Iterable[Request], arrived: Callable[[Request, str], None], until: float) -> None:
        """Run the requests up to `until`; call `arrived` with each request and its lane before a worker takes it."""
        for request in requests:
            self.until(request.at)
            self.arrive(request, arrived)
        self.until(until)

    # ---- arrivals and lanes ----

    def arrive(self, request: Request, arrived: Callable[[Request, str], None] = lambda request, lane: None) -> None:
        """Queue a request that arrives now; a request without steps to run is done at once."""
        if request.left <= 0:
            self.on_done(Done(request, self.now, "", "", 0, self.now))
            return
        plan = request.plan
        if plan.fallback is not None:
            plan = use_fallback(plan, {worker.duty.model for worker in self.workers})
            request = request if plan is request.plan else replace(request, plan=plan)
        lane = lane_for(ASKED, plan, self.served)
        arrived(request, lane)
        self._put(lane, request)

    def assign(self, duties: Mapping[str, ModelAssignment]) -> None:
        """Assign models to workers; a worker that changes its model finishes its rows first."""
        for worker in self.workers:
            worker.wanted = duties[worker.name]
            if not worker.switches:
                self._set(worker, worker.wanted)
        self._offer()

    def _put(self, lane: str, request: Request) -> None:
        self.waiting[lane].append(Row(request, lane, request.number, id=str(request.number)))
        self.longest = max(self.longest, len(self.waiting[lane]))
        if self.in_turns:
            self._deliver()
        else:
            self._offer()

    def _deliver(self) -> None:
        """Wake the next worker in turn with a free row (prefetch = max_rows)."""
        for _ in range(self.count):
            worker = self.workers[self._turn]
            self._turn = (self._turn + 1) % self.count
            if worker.in_hand < self.max_rows:
                self._wake(worker)
                return

    def _offer(self) -> None:
        """Wake idle workers, those with small models first, as they can take hits only; then workers with free rows."""
        idle = [worker for worker in self.workers if not worker.running]
        for worker in sorted(idle, key=lambda one: one.duty.model == self.served[0]):
            self._wake(worker)
        for worker in self.workers:
            if worker.running and worker.in_hand < self.max_rows and any(self.waiting[lane] for lane in worker.lanes):
                self._wake(worker)

    def _wake(self, worker: Worker) -> None:
        if not worker.running:
            self._join(worker)
        elif not worker.shut and not worker.switches:  # new rows join before the next step, where the stretch ends
            steps = max(1, math.ceil((self.now - worker.begun_at) / worker.step_s - 1e-9))
            if steps < worker.planned:
                self._end_after(worker, steps)

    # ---- steps ----

    def _join(self, worker: Worker) -> None:
        """Take rows while there is room, and run until a row is done; an empty worker changes its model if it must."""
        worker.running = worker.shut = True
        if worker.switches and not worker.in_hand:
            self._set(worker, worker.wanted)
            self.on_model(worker, self.now)
        encode_s = 0.0 if worker.switches else self._board(worker)
        worker.shut = False
        worker.running = worker.in_hand > 0
        if worker.running:
            worker.begun_at = self.now + encode_s
            worker.step_s = sum(self.profiles[model].of(len(heap)) for model, heap in worker.rows.items() if heap)
            self._end_after(worker, min(heap[0][0] for heap in worker.rows.values() if heap) - worker.ran)

    def _board(self, worker: Worker) -> float:
        """Add waiting rows to the batch; return the seconds to encode the images that some of them start from."""
        here: list[Row] = []
        while worker.in_hand + len(here) < self.max_rows and (row := self._taken(worker)) is not None:
            here.append(row)
        riding = [row for heap in worker.rows.values() for *_, row in heap] if here else []
        joining = set(decide(here, riding, frozenset(), self.now, self.max_rows).join) if here else set()
        encode_s = 0.0
        for row in here:
            plan = row.request.plan
            if row.id not in joining:
                self.waiting[row.lane].append(row)
                continue
            row.joined_at = self.now
            ends = worker.ran + row.request.left
            heapq.heappush(worker.rows.setdefault(plan.model, []), (ends, row.request.number, row))
            worker.in_hand += 1
            if plan.source is PlanSource.IMAGE:
                encode_s += self.profiles[plan.model].decode_s
        return encode_s

    def _end_after(self, worker: Worker, steps: int) -> None:
        worker.stretch += 1
        worker.planned = steps
        self.at(worker.begun_at + steps * worker.step_s, partial(self._stretched, worker, worker.stretch))

    def _stretched(self, worker: Worker, stretch: int) -> None:
        """Decode finished images one after the other while the batch waits."""
        if stretch != worker.stretch:
            return
        lasted = worker.planned * worker.step_s
        worker.busy_s += lasted
        worker.row_s += lasted * worker.in_hand
        worker.ran += worker.planned
        at = self.now
        for model, heap in worker.rows.items():
            while heap and heap[0][0] <= worker.ran:
                row = heapq.heappop(heap)[2]
                worker.in_hand -= 1
                at += self.profiles[model].decode_s
                done = Done(row.request, at, worker.name, model, row.request.left, row.joined_at)
                self.at(at, partial(self.on_done, done))
                worker.shut = True
        if not worker.shut:
            self._join(worker)
            return
        worker.busy_s += at - self.now
        self.at(at, partial(self._join, worker))

    def _taken(self, worker: Worker) -> Row | None:
        """Return the next row of the worker's lanes, with the plan of its model; None: the lanes are empty."""
        while (lane := next((lane for lane in worker.lanes if self.waiting[lane]), None)) is not None:
            row = self.waiting[lane].popleft()
            plan = choose_model(row.request.plan, worker.models, worker.first)
            if plan.model in worker.models:
                if plan is not row.request.plan:
                    row.request = replace(row.request, plan=plan)
                return row
            self._move(row.request, worker.duty)
        return None

    def _set(self, worker: Worker, duty: ModelAssignment) -> None:
        worker.duty = duty
        worker.lanes = lanes(duty, self.served, self.served)
        worker.models = used(duty, self.served, self.served)
        worker.first = preferred(duty, self.served, self.served)

    def _move(self, request: Request, duty: ModelAssignment) -> None:
        """Put a request on the lane of an allowed model that some worker runs; otherwise as a miss."""
        self.moved += 1
        plan = hand_over(request.plan, duty.assigned)
        self._put(lane_of(plan.model), replace(request, plan=plan))
