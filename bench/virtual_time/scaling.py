"""A day of traffic in virtual time: workers by the rule of compose/kubernetes/keda against fixed fleets.

    python -m bench.virtual_time.scaling

The monitor's own code measures demand and backlog (services/global_monitor). The numbers of the ScaledObject are read
from its manifest, and the autoscaler follows Kubernetes' algorithm. ASSUMPTIONS lists what is assumed; the results
repeat them.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # it ships no types

from bench.measuring.plotting import pyplot_or_none
from bench.measuring.recording import command_line, machine, quantile, record, settings_of, table
from bench.virtual_time.virtual_systems import LARGE, REPORT_S, Arrivals, bundled_speeds, latent, miss, poisson
from services.global_monitor.decision import Rules
from services.global_monitor.monitor import GlobalMonitor
from services.gpu_worker.models.model_assignment import ModelAssignment
from services.replay.simulated.pace import Profile
from services.replay.simulated.worker_state import Done, Request, Worker
from services.replay.simulated.workers import Workers
from shared.domain.messages import JobQueued, JobSucceeded, WorkerReported
from shared.domain.plan_rules import only_model

MANIFESTS = Path(__file__).parents[2] / "compose/kubernetes"
DAY_S = 86_400.0
BATCH = 8
GOAL = 0.95
ATTAINMENT_WINDOW_S = 600.0
ASSUMPTIONS = (
    "One model: the bundled large model's measured latencies (64×64, one thread, batches of up to 8), slowed so that "
    "an image alone takes 20 s.",
    "40 % of the requests start at K = 20 of T = 50, the others from noise. Each has a deadline of 5 times its "
    "time alone.",
    "Arrivals are Poisson; their rate is a sine over the day, from a tenth of the peak, with two bursts of 10 minutes "
    "that double it.",
    "A new worker serves after 120 s (its node is there). A worker that ends takes no new task, and finishes its rows.",
    "Prometheus adds 15 s of delay, and KEDA looks every 15 s. Workers cost the same while they start, serve and "
    "drain.",
)


@dataclass(frozen=True)
class Rule:
    """The ScaledObject of the workers: bounds, and what HPA allows per direction."""

    least: int
    most: int
    poll_s: float
    up: Sequence[tuple[str, int, float]]
    """(Pods or Percent, value, seconds)."""
    down: Sequence[tuple[str, int, float]]
    stable_s: float
    """Seconds over which the highest wish holds before workers are removed."""
    catch_up_s: float


def read_rule() -> Rule:
    """Read the rule from the manifests."""
    scaled = next(yaml.safe_load_all((MANIFESTS / "keda/scaling.yaml").read_text()))["spec"]
    behavior = scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    settings = yaml.safe_load((MANIFESTS / "base/settings.yaml").read_text())["data"]

    def policies(direction: str) -> list[tuple[str, int, float]]:
        return [(one["type"], one["value"], float(one["periodSeconds"])) for one in behavior[direction]["policies"]]

    return Rule(
        scaled["minReplicaCount"], scaled["maxReplicaCount"], float(scaled["pollingInterval"]), policies("scaleUp"),
        policies("scaleDown"), float(behavior["scaleDown"]["stabilizationWindowSeconds"]),
        float(settings["AFTERIMAGE_MONITOR_CATCH_UP_S"]),
    )  # fmt: skip


@dataclass
class Autoscaler:
    """Kubernetes' HPA: the wish of the metrics, the window of the scale-down, and the limits per period."""

    rule: Rule
    _wishes: deque[tuple[float, int]] = field(default_factory=deque)
    _changes: list[tuple[float, int]] = field(default_factory=list)

    def replicas(self, now: int, at: float, needed: float, attainment: float | None) -> int:
        """Return the replicas from now on.

        needed: workers that the predicted backlog needs. attainment: share of deadlines met; None: there were none."""
        rule = self.rule
        short = attainment is not None and attainment < GOAL
        wish = max(math.ceil(needed - 0.1 * now * (needed > now)), math.ceil(1.25 * now) if short else 0)  # tolerance
        wish = min(max(wish, rule.least), rule.most)
        self._wishes.append((at, wish))
        while self._wishes[0][0] < at - rule.stable_s:
            self._wishes.popleft()
        wish = min(max(one for _, one in self._wishes), now) if wish < now else wish
        allowed = self._allowed(rule.up if wish > now else rule.down, now, at, up=wish > now)
        wish = min(wish, now + allowed) if wish > now else max(wish, now - allowed)
        if wish != now:
            self._changes.append((at, wish - now))
        return wish

    def _allowed(self, policies: Sequence[tuple[str, int, float]], now: int, at: float, *, up: bool) -> int:
        """Return by how many workers the count may change; the most generous policy holds (selectPolicy Max)."""
        found = []
        for kind, value, period_s in policies:
            recent = sum(abs(by) for when, by in self._changes if when > at - period_s and (by > 0) == up)
            before = now - recent if up else now + recent
            found.append((value if kind == "Pods" else math.ceil(before * value / 100)) - recent)
        return max(0, *found)


@dataclass
class Outcome:
    """One fleet's figures of the day."""

    offered: int = 0
    served: int = 0
    met: int = 0
    worker_s: float = 0.0
    waits: list[float] = field(default_factory=list)
    counts: list[tuple[float, int]] = field(default_factory=list)
    longest_drain_s: float = 0.0

    def figures(self) -> dict[str, Any]:
        return {
            "offered": self.offered,
            "lost": self.offered - self.served,
            "slo_attainment": round(self.met / max(self.served, 1), 4),
            "wait_p50_s": round(quantile(self.waits, 0.5), 2),
            "wait_p99_s": round(quantile(self.waits, 0.99), 2),
            "worker_hours": round(self.worker_s / 3600, 1),
            "most_workers": max(count for _, count in self.counts),
            "longest_drain_s": round(self.longest_drain_s, 1),
        }


class Day:
    """One day of one fleet: `rule` None keeps `count` workers."""

    def __init__(
        self, arrivals: Arrivals, speed: Profile, count: int, rule: Rule | None, start_s: float, slo: float, seed: int
    ) -> None:
        self._speed, self._start_s, self._slo = speed, start_s, slo
        self._scaler = Autoscaler(rule) if rule else None
        catch_up_s = rule.catch_up_s if rule else 300.0
        self._monitor = GlobalMonitor(Rules(LARGE, mode="throughput", catch_up_s=catch_up_s), 0.0)
        self._workers = Workers((LARGE,), {LARGE: speed}, count, self._done, max_rows=BATCH)
        self._leaving: dict[str, tuple[Worker, float]] = {}
        self._starting, self._named = 0, count
        self._ended: deque[tuple[float, bool]] = deque()
        self._kinds = random.Random(seed)
        self._arrivals = arrivals
        self._seen: tuple[float, float | None] = 0.0, None
        self.outcome = Outcome(counts=[(0.0, count)])

    def run(self) -> Outcome:
        self._workers.at(REPORT_S, lambda: self._look(REPORT_S))
        self._workers.run(self._requests(), self._arrived, DAY_S)
        self._finish()
        return self.outcome

    def _requests(self) -> Iterator[Request]:
        for number, at in self._arrivals:
            self.outcome.offered += 1
            yield Request(number, at, latent(LARGE, 20) if self._kinds.random() < 0.4 else miss(LARGE))

    def _finish(self) -> None:
        """Let the workers empty the queue after the last arrival."""
        end = DAY_S
        while self.outcome.served < self.outcome.offered and end < 2 * DAY_S:
            end += 60.0
            self._workers.until(end)

    def _arrived(self, request: Request, lane: str) -> None:
        plan = request.plan
        steps = plan.run_steps(request.steps)
        fact = JobQueued(
            str(request.number), lane, plan.model, str(plan.source), plan.start_step, steps=steps, only=only_model(plan)
        )  # fmt: skip
        self._monitor.hear(fact, request.at)

    def _done(self, done: Done) -> None:
        plan = done.request.plan
        alone_s = (50 - plan.start_step) * self._speed.of(1) + self._speed.decode_s
        met = done.seconds <= self._slo * alone_s
        self.outcome.served += 1
        self.outcome.met += met
        self.outcome.waits.append(done.joined_at - done.request.at)
        self._ended.append((done.at, met))
        self._monitor.hear(JobSucceeded(str(done.request.number), 1, done.worker, done.model, done.steps_run), done.at)

    def _look(self, at: float) -> None:
        """Report the workers, let leaving ones go, and scale."""
        if at > DAY_S:
            return
        rates = tuple((LARGE, rows, self._speed.of(rows)) for rows in (1, BATCH))
        for worker in self._workers.workers:
            if worker.name not in self._leaving:
                report = WorkerReported(worker.name, "virtual", LARGE, worker.in_hand, BATCH, rates)
                self._monitor.hear(report, at)
        self._monitor.look(at)
        self._let_go(at)
        present = len(self._workers.workers) + self._starting
        self.outcome.worker_s += present * REPORT_S
        if self._scaler and at % self._scaler.rule.poll_s < REPORT_S:
            self._scale(at)
        self._workers.at(at + REPORT_S, lambda: self._look(at + REPORT_S))

    def _scale(self, at: float) -> None:
        assert self._scaler is not None
        needed, attainment = self._seen  # Prometheus scraped them one poll ago
        self._seen = self._numbers(at)
        now = len(self._workers.workers) - len(self._leaving) + self._starting
        wish = self._scaler.replicas(now, at, needed or now, attainment)
        for _ in range(wish - now):
            self._starting += 1
            self._workers.at(at + self._start_s, self._started)
        staying = [worker for worker in self._workers.workers if worker.name not in self._leaving]
        for worker in staying[wish:] if wish < len(staying) else ():
            self._leaving[worker.name] = worker, at
            worker.lanes = ()  # takes no new task; finishes its rows
        if wish != now:
            self.outcome.counts.append((at, wish))

    def _numbers(self, at: float) -> tuple[float, float | None]:
        """Return the workers that the predicted backlog needs, and the SLO attainment, as the ScaledObject asks."""
        view = self._monitor.view(at)
        rate = sum(worker.rates.get(LARGE, 0.0) for worker in view.workers)
        while self._ended and self._ended[0][0] < at - ATTAINMENT_WINDOW_S:
            self._ended.popleft()
        attainment = sum(met for _, met in self._ended) / len(self._ended) if self._ended else None
        return (len(view.workers) * view.work.total / rate if rate else 0.0), attainment

    def _started(self) -> None:
        self._starting -= 1
        duty = ModelAssignment(LARGE, frozenset({LARGE}), "throughput")
        worker = Worker(f"w{self._named:04}", duty, duty)
        self._named += 1
        self._workers.workers.append(worker)
        self._workers._set(worker, duty)
        self._workers._offer()

    def _let_go(self, at: float) -> None:
        for name, (worker, since) in [*self._leaving.items()]:
            if not worker.in_hand:
                self.outcome.longest_drain_s = max(self.outcome.longest_drain_s, at - since)
                self._workers.workers.remove(worker)
                del self._leaving[name]


def traffic(peak: float, seed: int) -> Arrivals:
    """Yield the day's arrivals; peak: requests per second at noon, without the bursts."""
    bursts = (6.5 * 3600, 15 * 3600)

    def rate(at: float) -> float:
        wave = 0.1 + 0.9 * (1 - math.cos(2 * math.pi * at / DAY_S)) / 2
        return peak * wave * (2 if any(start <= at < start + 600 for start in bursts) else 1)

    return poisson(rate, 2 * peak, DAY_S, seed)


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--alone-s", type=float, default=20.0, help="seconds of an image on an idle worker")
    parser.add_argument("--peak-workers", type=float, default=8.0, help="full workers at the peak, without bursts")
    parser.add_argument("--start-s", type=float, default=120.0, help="seconds until a new worker serves")
    parser.add_argument("--slo", type=float, default=5.0, help="deadline in times alone")
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args()
    on = machine()
    bundled = bundled_speeds()[LARGE]
    slower = asked.alone_s / bundled.alone_s()
    speed = replace(bundled, step_s=tuple(slower * one for one in bundled.step_s), decode_s=slower * bundled.decode_s)
    mean_steps = 0.6 * 50 + 0.4 * 30
    peak = asked.peak_workers * BATCH / (mean_steps * speed.of(BATCH) + BATCH * speed.decode_s)
    rule = read_rule()

    def day(count: int, by: Rule | None) -> Outcome:
        return Day(traffic(peak, asked.seed), speed, count, by, asked.start_s, asked.slo, asked.seed).run()

    scaled = day(2, rule)
    outcomes = {"scaled": scaled}
    mean = math.ceil(scaled.worker_s / DAY_S)
    for count in sorted({*range(mean, math.ceil(1.5 * asked.peak_workers) + 1), rule.most}):
        outcomes[f"fixed {count}"] = day(count, None)
    figures = {name: outcome.figures() for name, outcome in outcomes.items()}
    reach = [
        figures[name]["worker_hours"]
        for name in figures
        if name != "scaled" and figures[name]["slo_attainment"] >= figures["scaled"]["slo_attainment"]
    ]
    share = round(figures["scaled"]["worker_hours"] / min(reach), 3) if reach else None
    columns = ["fleet", *next(iter(figures.values()))]
    print(table(columns, [[name, *map(str, row.values())] for name, row in figures.items()]))
    print(f"\ncost against the smallest fixed fleet with at least this attainment: {share}")
    plot(scaled, peak, asked.seed, speed)
    settings = {**settings_of(asked), "rule": asdict(rule), "peak_per_s": round(peak, 3), "assumptions": ASSUMPTIONS}
    record("scaling", {"fleets": figures, "cost_against_fixed": share}, settings, on=on)
    return 0


def plot(scaled: Outcome, peak: float, seed: int, speed: Profile) -> None:
    """Draw arrivals and workers over the day into bench/results/scaling.png."""
    pyplot = pyplot_or_none()
    if pyplot is None:
        return
    hours = 24
    arrived = [0] * (hours * 12)
    for _, at in traffic(peak, seed):
        arrived[min(int(at // 300), len(arrived) - 1)] += 1
    figure, left = pyplot.subplots(figsize=(8, 3.5))
    left.plot(
        [n / 12 for n in range(len(arrived))], [one / 300 for one in arrived], color="tab:gray", label="requests/s"
    )
    left.set_xlabel("hour")
    left.set_ylabel("requests per second")
    right = left.twinx()
    times = [at / 3600 for at, _ in scaled.counts] + [hours]
    right.step(times, [count for _, count in scaled.counts] + [scaled.counts[-1][1]], where="post", label="workers")
    right.set_ylabel("workers")
    right.set_ylim(bottom=0)
    left.set_ylim(bottom=0)
    figure.tight_layout(rect=(0, 0, 1, 0.92))
    figure.legend(loc="upper center", ncols=2)
    figure.savefig(Path(__file__).parents[1] / "results/scaling.png", dpi=110)


if __name__ == "__main__":
    raise SystemExit(main())
