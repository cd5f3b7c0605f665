"""Workers that share a lane in virtual time: who takes a request, when it joins a batch, and when it is finished."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from services.gpu_worker.engine.finishes import Kind, Timed
from services.gpu_worker.engine.scheduler import Decision
from services.gpu_worker.engine.slack import decide_by_slack
from services.gpu_worker.engine.step_seconds import StepSeconds
from shared.domain.urgency import AGED_EVERY, Waiting, most_urgent
from shared.models import ModelCard
from shared.models.standalone import Line, line_of, pixels_of, read_shipped
from shared.models.step_regression import mix_of

SLO = 5.0
"""Deadline in standalone times (PatchedServe §8)."""
NOISE = 0.05
"""Standard deviation of the logarithm of a step's seconds, which no predictor knows."""
SKIPPED = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Shares of its steps that a hit skips: NIRVANA's K of 5 to 25 at T = 50 (§4.1)."""
NOBODY: frozenset[str] = frozenset()

Policy = Callable[[Sequence[Timed], Sequence[Timed], Sequence[Timed], float, int, StepSeconds], Decision]
"""waiting, running and aside rows of a worker, time, rows and predictor → who joins."""


def by_slack(
    waiting: Sequence[Timed], running: Sequence[Timed], aside: Sequence[Timed], now: float, rows: int, of: StepSeconds
) -> Decision:
    return decide_by_slack(waiting, running, NOBODY, now, rows, {"model": of})


def by_slack_aside(
    waiting: Sequence[Timed], running: Sequence[Timed], aside: Sequence[Timed], now: float, rows: int, of: StepSeconds
) -> Decision:
    return decide_by_slack(waiting, running, NOBODY, now, rows, {"model": of}, aside=aside, may_set_aside=True)


def by_arrival(
    waiting: Sequence[Timed], running: Sequence[Timed], aside: Sequence[Timed], now: float, rows: int, of: StepSeconds
) -> Decision:
    first = waiting[: max(rows - len(running), 0)]
    return Decision(join=tuple(task.id for task in first))


def by_resolution(
    waiting: Sequence[Timed], running: Sequence[Timed], aside: Sequence[Timed], now: float, rows: int, of: StepSeconds
) -> Decision:
    """One resolution in the batch; others wait until it is empty. Within a resolution first come, first served."""
    kind = running[0].kind if running else waiting[0].kind
    same = [task for task in waiting if task.kind == kind]
    return by_arrival(same, running, aside, now, rows, of)


@dataclass(frozen=True)
class System:
    name: str
    policy: Policy
    patches: bool = True
    steps: float = 1.0
    """Share of the steps that a request runs."""
    step_time: float = 1.0
    """Factor of a step's seconds: below 1 with reuse between steps."""
    take: str = "arrival"
    """How a worker gets requests: `arrival` or `urgent`, one for each free row; `whole`: it decides over all that wait;
    `pixels`: each goes to the worker with the fewest pixels as it arrives (PatchedServe §8.1)."""


@dataclass(frozen=True)
class Worker:
    """A model's step times and sizes, and the rows of the worker."""

    card: ModelCard
    rows: int
    steps: int

    def seconds(self, *, patches: bool, step_time: float = 1.0) -> StepSeconds:
        latency = read_shipped(self.card) or {}
        decode_s = float(latency.get("decode_s", 0.0)) / pixels_of(self.card)
        line = line_of(self.card, latency)
        line = Line(step_time * line.fixed_s, step_time * line.per_pixel_s)
        return StepSeconds(line, decode_pixel_s=decode_s, together=patches)

    @property
    def kinds(self) -> list[Kind]:
        passes = 2 if self.card.default_guidance > 1 else 1
        return [((size.width, size.height, 1), passes) for size in self.card.sizes.sizes or (self.card.default_size,)]

    def alone_s(self, kind: Kind) -> float:
        of = self.seconds(patches=True)
        return self.steps * of.of(mix_of([kind])) + of.decode_s(kind[0][0] * kind[0][1])

    @property
    def capacity(self) -> float:
        """Return the requests per second of full batches in which every size is equally frequent."""
        of, kinds = self.seconds(patches=True), self.kinds
        step_s = sum(of.of(mix_of([kind] * self.rows)) for kind in kinds) / len(kinds)  # linear in the pixels
        decode_s = sum(of.decode_s(width * height) for (width, height, _), _ in kinds) / len(kinds)
        return self.rows / (self.steps * step_s + self.rows * decode_s)


def arrivals(
    worker: Worker,
    load: float,
    count: int,
    seed: int,
    workers: int = 1,
    slos: Sequence[float] = (SLO,),
    hits: float = 0.0,
) -> Iterator[Timed]:
    """Yield requests with Poisson arrivals; load 1 is the capacity of all workers. slos: deadlines in standalone times,
    equally often. hits: share of the requests that skip their first K steps, each K of SKIPPED equally often."""
    draw, at = random.Random(seed), 0.0
    alone = {kind: worker.alone_s(kind) for kind in worker.kinds}
    rate = load * worker.capacity * workers
    for number in range(count):
        at += draw.expovariate(rate)
        kind = draw.choice(worker.kinds)
        deadline_at = at + (slos[0] if len(slos) == 1 else draw.choice(slos)) * alone[kind]
        name, steps = f"{number:06}", worker.steps
        if hits and draw.random() < hits:
            steps -= round(draw.choice(SKIPPED) * steps)
        yield Timed(name, "model", kind, steps, steps, at, deadline_at=deadline_at, arrived=number)


@dataclass
class Served:
    """What a run gave: ends by id, rows × steps, rows set aside."""

    ends: dict[str, float] = field(default_factory=dict)
    row_steps: int = 0
    aside: int = 0


@dataclass
class _State:
    """One worker: its requests in hand."""

    number: int
    waiting: list[Timed] = field(default_factory=list)
    running: list[Timed] = field(default_factory=list)
    aside: list[Timed] = field(default_factory=list)
    claims: int = 0
    busy: bool = False

    @property
    def in_hand(self) -> int:
        return len(self.waiting) + len(self.running) + len(self.aside)

    @property
    def pixels(self) -> int:
        return sum(one.pixels for some in (self.waiting, self.running, self.aside) for one in some)


class Fleet:
    """Workers alike that serve one stream of requests."""

    def __init__(
        self, worker: Worker, system: System, workers: int, *, drop: bool, seed: int, rotate: bool = True
    ) -> None:
        """drop: a request leaves at its deadline, waiting or running. rotate: among workers with a free row the next in
        turn gets a request, as a broker does; otherwise the one with the fewest pixels in hand."""
        self._worker, self._system, self._drop, self._rotate = worker, system, drop, rotate
        self._of = worker.seconds(patches=system.patches, step_time=system.step_time)
        self._draw = random.Random(seed)
        self._decode = {kind: self._of.decode_s(kind[0][0] * kind[0][1]) for kind in worker.kinds}
        self._needed: dict[tuple[Kind, int], tuple[float, float]] = {}
        self._states = [_State(number) for number in range(workers)]
        self._queue: list[Timed] = []
        self._boundaries: list[tuple[float, int]] = []
        self._turn = 0
        self.served = Served()

    def serve(self, requests: Sequence[Timed]) -> Served:
        """Serve the requests in virtual time."""
        share = self._system.steps
        coming = [
            replace(one, steps=(steps := round(share * one.steps)), left=steps, drop_if_late=self._drop)
            for one in reversed(requests)
        ]
        while coming or self._boundaries:
            if coming and (not self._boundaries or coming[-1].since <= self._boundaries[0][0]):
                self._arrived(coming.pop())
            else:
                now, number = heapq.heappop(self._boundaries)
                self._step(self._states[number], now)
        return self.served

    def _needs_s(self, kind: Kind, steps: int) -> tuple[float, float]:
        """Return the seconds of a request alone, and in a full batch of all sizes."""
        if (found := self._needed.get((kind, steps))) is None:
            kinds, rows = self._worker.kinds, self._worker.rows
            alone_s = steps * self._of.of(mix_of([kind])) + self._decode[kind]
            full = self._of.of(mix_of(kinds[number % len(kinds)] for number in range(rows)))
            in_batch_s = alone_s * full * len(kinds) / sum(self._of.of(mix_of([one])) for one in kinds)
            found = self._needed[kind, steps] = alone_s, in_batch_s
        return found

    def _arrived(self, one: Timed) -> None:
        now, take = one.since, self._system.take
        if take == "pixels":
            state = min(self._states, key=lambda state: (state.pixels, state.number))
            state.waiting.append(one)
            self._wake(state, now)
            return
        self._queue.append(one)
        if take == "whole":
            idle = next((state for state in self._states if not state.busy), None)
            if idle is not None:
                self._wake(idle, now)
            return
        free = [state for state in self._states if state.in_hand < self._worker.rows]
        if not free:
            return
        if self._rotate:
            state = min(free, key=lambda state: (state.number - self._turn) % len(self._states))
            self._turn = state.number + 1
        else:
            state = min(free, key=lambda state: (state.pixels, state.number))
        self._claim(state, now)
        self._wake(state, now)

    def _wake(self, state: _State, now: float) -> None:
        if not state.busy:
            state.busy = True
            heapq.heappush(self._boundaries, (now, state.number))

    def _claim(self, state: _State, now: float) -> None:
        """Take requests from the lane while the worker has rows."""
        while self._queue and state.in_hand < self._worker.rows:
            if self._drop:
                self._queue = [one for one in self._queue if (one.deadline_at or 0.0) >= now]
                if not self._queue:
                    return
            place = 0
            if self._system.take == "urgent":
                state.claims += 1
                place = self._most_urgent(now, aged_first=state.claims % AGED_EVERY == 0)
            state.waiting.append(self._queue.pop(place))

    def _most_urgent(self, now: float, *, aged_first: bool) -> int:
        rows = [
            Waiting(one.id, one.since, 0, (one.deadline_at or 0.0) - one.since, *self._needs_s(one.kind, one.steps))
            for one in self._queue
        ]
        (name,) = most_urgent(rows, now, 1, aged_first=aged_first)
        return next(place for place, one in enumerate(self._queue) if one.id == name)

    def _step(self, state: _State, now: float) -> None:
        whole = self._system.take == "whole"
        if self._drop:
            for rows in (state.waiting, state.running, state.aside, *([self._queue] if whole else [])):
                rows[:] = [one for one in rows if (one.deadline_at or 0.0) >= now]
        if self._system.take in ("arrival", "urgent"):
            self._claim(state, now)
        self._decide(state, self._queue if whole else state.waiting, now)
        if not state.running:
            state.busy = bool(state.waiting)
            if state.busy:  # nobody may join: look again when the first of them is dropped
                at = min(one.deadline_at or now for one in state.waiting)
                heapq.heappush(self._boundaries, (max(at, now) + 1e-9, state.number))
            return
        now += self._of.of(mix_of(one.kind for one in state.running)) * self._draw.lognormvariate(0.0, NOISE)
        self.served.row_steps += len(state.running)
        rest = []
        for one in state.running:
            if one.left > 1:
                # in place: copies of all rows at each step take a third of the time, and no other object has these
                object.__setattr__(one, "left", one.left - 1)
                rest.append(one)
                continue
            now += self._decode[one.kind]
            self.served.ends[one.id] = now
        state.running = rest
        heapq.heappush(self._boundaries, (now, state.number))

    def _decide(self, state: _State, waiting: list[Timed], now: float) -> None:
        if not waiting and not state.aside:
            return
        decision = self._system.policy(waiting, state.running, state.aside, now, self._worker.rows, self._of)
        if not (decision.join or decision.resume):
            return
        join, away, back = {*decision.join}, {*decision.aside}, {*decision.resume}
        self.served.aside += len(away)
        state.aside += [
            replace(one, was_aside=True, made_room_for=decision.join[0]) for one in state.running if one.id in away
        ]
        state.running = [
            *(one for one in state.running if one.id not in away),
            *(one for one in state.aside if one.id in back),
            *(replace(one, aged=one.id in decision.aged) for one in waiting if one.id in join),
        ]
        state.aside = [one for one in state.aside if one.id not in back]
        waiting[:] = [one for one in waiting if one.id not in join]
