"""The systems compared in virtual time: one model everywhere, retrieval, and MoDM with its global monitor."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle

from bench.trace_plans import Hits
from bench.traced.systems import Served
from services.global_monitor.decision import Decision, Rules
from services.global_monitor.monitor import GlobalMonitor
from services.gpu_worker.models.model_assignment import ModelAssignment
from services.replay.simulated.pace import STEPS, Profile, read_profile
from services.replay.simulated.worker_state import Done, Request, Worker
from services.replay.simulated.workers import Workers
from shared.domain.messages import JobQueued, JobSucceeded, WorkerReported, WorkersAssigned
from shared.domain.plan_rules import only_model
from shared.domain.types import ModelPlan, Plan, PlanSource

LARGE, SMALL = "large", "small"
REPORT_S = 5.0
Arrivals = Iterator[tuple[int, float]]
"""Pairs of (number from 1 upwards, arrival in virtual seconds)."""


def bundled_speeds() -> dict[str, Profile]:
    """Return the bundled models' speeds as `afterimage profile` measured them: 64×64, one thread."""
    return {model: read_profile(f"bundled:{model}") for model in (LARGE, SMALL)}


def poisson(rate: Callable[[float], float], highest: float, until: float, seed: int) -> Arrivals:
    """Yield Poisson arrivals by thinning; the same seed gives the same times."""
    times, at, number = random.Random(seed), 0.0, 0
    while (at := at + times.expovariate(highest)) < until:
        if times.random() * highest <= rate(at):
            number += 1
            yield number, at


def steady(rate: float, until: float, seed: int) -> Arrivals:
    return poisson(lambda at: rate, rate, until, seed)


# ---- plans


def miss(model: str) -> Plan:
    return Plan(PlanSource.NOISE, model, may_run=(ModelPlan(model, 0),))


def latent(model: str, k: int) -> Plan:
    return Plan(PlanSource.LATENT, model, start_step=k, may_run=(ModelPlan(model, k),))


def picture(may_run: Sequence[tuple[str, int]], misses: str = LARGE) -> Plan:
    """Return a plan that starts from an image; `may_run` lists (model, k), cheapest first."""
    able = tuple(ModelPlan(model, k) for model, k in may_run)
    return Plan(PlanSource.IMAGE, able[0].model, start_step=able[0].start_step, may_run=able, miss_model=misses)


def plan_of(served: Served) -> Plan:
    """Return the plan that was decided on the trace."""
    if served.source == PlanSource.IMAGE:
        return picture(served.may_run)
    return latent(served.model, served.start_step) if served.source == PlanSource.LATENT else miss(LARGE)


def plans_of(hits: Hits) -> list[Plan]:
    """Return the plans in the trace's order; arrivals cycle through them."""
    return [plan_of(one) for one in hits.served]


# ---- systems


@dataclass
class Run:
    """The outcome of one system."""

    done: list[Done] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    models: list[tuple[float, int]] = field(default_factory=list)
    """(virtual seconds, workers that run the large model)."""
    switches: int = 0
    moved: int = 0
    busy_s: float = 0.0
    """Seconds that workers were busy between `since` and `until`, summed over workers."""


def plain(
    arrivals: Arrivals, plans: Sequence[Plan], speeds: dict[str, Profile], count: int, until: float,
    *, model: str = LARGE, max_rows: int = 8, steps: int = STEPS, since: float = 0.0,
) -> Run:  # fmt: skip
    """Simulate workers that all run `model`."""
    run = Run()
    workers = Workers((model,), speeds, count, run.done.append, max_rows=max_rows)
    before = busy_at(workers, since)
    offered = (Request(number, at, plan, steps) for (number, at), plan in zip(arrivals, cycle(plans), strict=False))
    workers.run(offered, lambda request, lane: None, until)
    run.busy_s = busy_since(run, workers, before, since, until)
    return run


def handed_out(
    arrivals: Arrivals, hits: Hits, speeds: dict[str, Profile], count: int, until: float,
    *, max_rows: int = 8, since: float = 0.0,
) -> Run:  # fmt: skip
    """Simulate retrieval: hits return an image unchanged at once, without a worker."""
    run, missed = Run(), []
    for (number, at), served in zip(arrivals, cycle(hits.served), strict=False):
        request = Request(number, at, miss(LARGE))
        if served.source == PlanSource.NOISE:
            missed.append(request)
        else:
            run.done.append(Done(request, at, "", "", 0))
    workers = Workers((LARGE,), speeds, count, run.done.append, max_rows=max_rows)
    before = busy_at(workers, since)
    workers.run(missed, lambda request, lane: None, until)
    run.busy_s = busy_since(run, workers, before, since, until)
    return run


def busy_at(workers: Workers, when: float) -> list[float]:
    """Return a list that receives the workers' busy seconds once virtual time reaches `when`."""
    found: list[float] = []
    workers.at(when, lambda: found.append(sum(worker.busy_s for worker in workers.workers)))
    return found


def busy_since(run: Run, workers: Workers, before: list[float], since: float, until: float) -> float:
    """Return the workers' busy seconds between two times.

    `Worker.busy_s` holds steps and decoding. Encoding a hit's image into a latent is added, at the cost of a
    decoding."""
    images = (done for done in run.done if since <= done.at <= until and done.request.plan.source is PlanSource.IMAGE)
    encoding_s = sum(workers.profiles[done.model].decode_s for done in images)
    return sum(worker.busy_s for worker in workers.workers) - sum(before) + encoding_s


class Modm:
    """The global monitor over virtual workers."""

    def __init__(
        self, arrivals: Arrivals, plans: Sequence[Plan], speeds: dict[str, Profile], count: int, rules: Rules,
        until: float, *, max_rows: int = 8, since: float = 0.0,
    ) -> None:  # fmt: skip
        self.run = Run(models=[(0.0, count)])
        self._offered = (Request(number, at, plan) for (number, at), plan in zip(arrivals, cycle(plans), strict=False))
        self._rules, self._since, self._until, self._max_rows = rules, since, until, max_rows
        self._steps = tuple(
            (model, rows, speed.of(rows)) for model, speed in speeds.items() for rows in sorted({1, max_rows})
        )
        self._monitor = GlobalMonitor(rules, 0.0)
        self._workers = Workers(
            (rules.large, *rules.smalls), speeds, count, self._done, self._changed, max_rows, rules.mode
        )

    def __call__(self) -> Run:
        self._look(0.0, self._rules.period_s)
        before = busy_at(self._workers, self._since)
        self._workers.run(self._offered, self._arrived, self._until)
        self.run.busy_s = busy_since(self.run, self._workers, before, self._since, self._until)
        self.run.moved = self._workers.moved
        return self.run

    def _arrived(self, request: Request, lane: str) -> None:
        plan = request.plan
        fact = JobQueued(
            str(request.number), lane, plan.model, str(plan.source), plan.start_step,
            steps=plan.run_steps(request.steps), only=only_model(plan),
        )  # fmt: skip
        self._monitor.hear(fact, request.at)

    def _done(self, done: Done) -> None:
        self.run.done.append(done)
        fact = JobSucceeded(str(done.request.number), 1, done.worker, done.model, done.steps_run)
        self._monitor.hear(fact, done.at)

    def _changed(self, worker: Worker, at: float) -> None:
        self._report(worker, at)
        self.run.models.append((at, sum(one.duty.model == self._rules.large for one in self._workers.workers)))

    def _report(self, worker: Worker, at: float) -> None:
        report = WorkerReported(
            worker.name, "virtual", worker.duty.model, worker.in_hand, self._max_rows, self._steps
        )  # fmt: skip
        self._monitor.hear(report, at)

    def _look(self, at: float, next_: float) -> None:
        for worker in self._workers.workers:
            self._report(worker, at)
        self._monitor.look(at)
        if at >= next_ or self._monitor.urgent:
            self._decide(at)
            next_ = at + self._rules.period_s
        if at + REPORT_S < self._until:
            self._workers.at(at + REPORT_S, lambda: self._look(at + REPORT_S, next_))

    def _decide(self, at: float) -> None:
        decision = self._monitor.decide(at)
        self.run.decisions.append(decision)
        self.run.switches += len(decision.switches)
        said = WorkersAssigned(tuple(decision.models.items()), decision.mode)
        self._workers.assign({one.name: self._after(one, said) for one in self._workers.workers})

    def _after(self, worker: Worker, said: WorkersAssigned) -> ModelAssignment:
        return worker.duty.after(said, worker.name)


def everyone_may(hits: Hits, models: Sequence[str], large: str) -> list[Plan]:
    """Return the trace's image hits as if each of these models, cheapest first, could continue after the same k."""
    plans = []
    for one in hits.served:
        is_hit = one.source == PlanSource.IMAGE
        plans.append(picture([(model, one.start_step) for model in models], large) if is_hit else miss(large))
    return plans


def served_together(done: Sequence[Done], since: float, until: float) -> float:
    """Return requests per second between two times, counting a request only if all earlier requests are served. So no
    system gains by preferring one kind of request."""
    served = {one.request.number: one.at for one in done}
    counts = [0, 0]
    for place, end in enumerate((since, until)):
        number = counts[0]
        while served.get(number + 1, float("inf")) <= end:
            number += 1
        counts[place] = number
    return (counts[1] - counts[0]) / (until - since)
