"""The monitor as a pure state machine: events in, an allocation of models to workers out (MoDM §5.3, Algorithm 1)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from services.global_monitor.allocation.hysteresis import whole
from services.global_monitor.allocation.modes import Mode, Target, allocate
from services.global_monitor.allocation.payback import Stage, expected_s, pays_back, switch_s
from services.global_monitor.allocation.pid import PidState, advance
from services.global_monitor.allocation.placement import bands, capacity_of, fleet_of, place
from services.global_monitor.allocation.starvation import AMORTISED, Waits, WorkerSlot, turns
from services.global_monitor.allocation.workload import REFINE, Workload, workload
from services.global_monitor.decision import Decision, Rules
from services.global_monitor.demand import Demand, DemandWindow
from services.global_monitor.roster import Roster, Worker
from shared.domain.messages import (
    JobCancelled,
    JobFailed,
    JobQueued,
    JobSucceeded,
    Message,
    WorkerReported,
    WorkersAssigned,
    lane_of,
)

SWITCHES_KEPT = 20


class GlobalMonitor:
    """The monitor's state. Call `hear` for each event, and `decide` once per period, or sooner when `urgent`: a worker
    came or went. Between two decisions `turn` sends workers to lanes without a worker."""

    def __init__(self, rules: Rules, at: float) -> None:
        self.rules = rules
        self._roster = Roster(rules.lapse_s, rules.generations)
        self._window = DemandWindow(rules.window_s, at, rules.generations)
        self._home: dict[str, str] = {}
        """Each worker's model by the last decision, or its reported model before any decision."""
        self._away: dict[str, str] = {}
        """Workers on a turn, and the model that each runs during the turn."""
        self._runs: dict[str, tuple[str, float]] = {}
        """Each worker's reported model, and since when."""
        self._asked_at: dict[str, float] = {}
        """Workers that are switching, and since when."""
        self._busy: dict[str, tuple[set[str], int]] = {}
        """Models whose workers have had enough work since the last check, with their lanes and rows."""
        self._took_s: deque[float] = deque(maxlen=SWITCHES_KEPT)
        self._pid: PidState | None = None
        self._of = 0
        """Number of workers when the PID's output was computed."""
        self._since = self._decided_at = at
        self._last: Decision | None = None
        self._refused: tuple[str, bool, float] | None = None
        """The switch that the last decisions refused: its small model, whether it improves quality, and since when it
        was refused."""
        self._mode: Mode = rules.mode
        self._small = rules.smalls[0] if rules.smalls else ""
        self.urgent = False

    @property
    def models(self) -> Mapping[str, str]:
        """Worker → model, by the last assignment."""
        return self._home | self._away

    @property
    def mode(self) -> Mode:
        """The mode in force, which may be the fallback mode."""
        return self._mode

    def hear(self, fact: Message, at: float) -> None:
        match fact:
            case JobQueued():
                self._window.queued(fact, at)
            case JobSucceeded():
                self._ended(fact.job_id)
                self._roster.finished(fact)
            case JobFailed(job_id=job_id) | JobCancelled(job_id=job_id):
                self._ended(job_id)
            case WorkerReported():
                self._reported(fact, at)
            case _:
                return

    def missed(self) -> None:
        """Drop counts that depend on events, because events were lost."""
        self._window.missed()
        self._busy = {}

    def _reported(self, report: WorkerReported, at: float) -> None:
        self.urgent |= self._roster.reported(report, at)
        self._home.setdefault(report.worker, report.model)
        if self._runs.get(report.worker, ("", at))[0] != report.model:
            self._runs[report.worker] = report.model, at
        if self.models[report.worker] == report.model and report.worker in self._asked_at:
            self._took_s.append(at - self._asked_at.pop(report.worker))

    def adopt(self, fact: WorkersAssigned) -> None:
        """Take over another monitor's decision, to continue from it if this replica becomes the leader."""
        self._home |= dict(fact.assignments)
        self._away = {}
        self._mode = "throughput" if fact.mode == "throughput" else "quality"

    def view(self, at: float) -> Decision:
        """Return the last decision with the current demand and workers."""
        workers, demand = tuple(self._roster.workers()), self._demand(at)
        models = {worker.name: self.models.get(worker.name, worker.model) for worker in workers}
        if self._last is None:
            now = self._count_large(models)
            target, work = self._watching(len(workers), now), self._work(demand)
            return Decision(at, models, self._mode, demand, work, target, PidState(now), workers)
        return replace(self._last, models=models, demand=demand, work=self._work(demand), workers=workers)

    def look(self, at: float) -> None:
        """Update the workers between two decisions: drop those that stopped reporting, and compare the speeds that the
        others report with the jobs that they finished."""
        self.urgent |= bool(self._roster.lapse(at))
        self._forget_gone()
        before, self._busy = self._busy, self._lack_nothing()
        busy = before.keys() & self._busy.keys()
        self._roster.judge(at, lambda report: report.worker not in self._asked_at and report.model in busy)

    def _lack_nothing(self) -> dict[str, tuple[set[str], int]]:
        """Return models whose workers cannot lack work now, because their lanes hold more jobs than all their consumers
        have rows: model → (lanes, rows)."""
        workers = self._roster.workers()
        lanes = {worker.model: self._lanes(worker.model) for worker in workers}
        rows = {
            model: sum(worker.max_rows for worker in workers if own & lanes[worker.model])
            for model, own in lanes.items()
        }  # fmt: skip
        return {model: (own, rows[model]) for model, own in lanes.items() if self._window.open_in(own) > rows[model]}

    def _ended(self, job_id: str) -> None:
        self._window.ended(job_id)
        self._busy = {
            model: (lanes, rows) for model, (lanes, rows) in self._busy.items() if self._window.open_in(lanes) > rows
        }

    def _forget_gone(self) -> None:
        """Drop state of workers that are gone. A standby replica makes no decision, so nothing else would drop that
        state."""
        here = {worker.name for worker in self._roster.workers()}
        self._home = {name: model for name, model in self._home.items() if name in here}
        self._runs = {name: run for name, run in self._runs.items() if name in here}

    def _lanes(self, model: str) -> set[str]:
        refines = model != self.rules.large or self._refines(self._mode, self.models)
        return {lane_of(model), *(REFINE if refines else ())}

    def _refines(self, mode: Mode, models: Mapping[str, str]) -> bool:
        """Return whether large models refine hits too (docs/architecture.md, Services)."""
        return mode == "quality" or not any(model in self.rules.smalls for model in models.values())

    def _demand(self, at: float) -> Demand:
        return self._window.demand(at, sum(worker.rows for worker in self._roster.workers()))

    # ---- deciding ----

    def decide(self, at: float) -> Decision:
        """Decide the allocation from now on."""
        self.look(at)
        workers, demand = self._roster.workers(), self._demand(at)
        rules, work = self.rules, self._work(demand)
        self._home = {worker.name: self._home.get(worker.name, worker.model) for worker in workers}
        now = self._count_large(self._home)
        self._small = self._present_small()
        if at - self._since < rules.period_s:
            target, pid, models, kept = self._watching(len(workers), now), PidState(now), dict(self._home), ""
        else:
            fleet = fleet_of(workers, rules.large, rules.smalls)
            target = allocate(len(workers), fleet, work, rules.mode, small=self._small, large=now)
            pid = self._advance(target, len(workers), at, asked=bool(demand.lanes)) or PidState(now)
            total = whole(pid.output, now, rules.band, target.least, target.most)
            wanted = self._place(workers, total, target, work)
            models, kept = self._worth_it(workers, wanted, target, self._work(demand, headroom=0.0), at)
        if not kept:
            self._refused = None
        return self._decided(Decision(at, models, self._mode, demand, work, target, pid, tuple(workers), kept=kept))

    def _watching(self, workers: int, now: int) -> Target:
        """Return a target that keeps the running models during the first period, while the demand is unknown."""
        return Target(now, self._small, self._mode, 0, workers, "the demand is measured for one period first")

    def _present_small(self) -> str:
        """Return the small model that most workers run, else the small model of the last decision."""
        counts = Counter(model for model in self._home.values() if model in self.rules.smalls)
        return counts.most_common(1)[0][0] if counts else self._small

    def _work(self, demand: Demand, *, headroom: float | None = None) -> Workload:
        rules = self.rules
        share = rules.headroom if headroom is None else headroom
        return workload(demand, rules.large, rules.smalls, headroom=share, catch_up_s=rules.catch_up_s)

    def _count_large(self, models: Mapping[str, str]) -> int:
        return sum(model == self.rules.large for model in models.values())

    def _advance(self, target: Target, workers: int, at: float, *, asked: bool) -> PidState | None:
        """Advance the PID to the target. For the first demand, the output is the heuristic's target; later the PID
        follows the target (§5.3). Returns None before any demand. When the fleet grows or shrinks, the share of large
        workers stays."""
        minutes, self._decided_at = (at - self._decided_at) / 60, at
        if self._pid is None:
            self._pid = PidState(target.large) if asked else None
        else:
            scale = workers / self._of if self._of else 1.0
            state = PidState(self._pid.output * scale, self._pid.error, self._pid.integral)
            self._pid = advance(state, target.large, minutes, self.rules.gains, target.least, target.most)
        self._of = workers
        return self._pid

    def _place(self, workers: Sequence[Worker], total: int, target: Target, work: Workload) -> dict[str, str]:
        if not workers:
            return {}
        large, refines = self.rules.large, target.mode == "quality"
        of = bands(workers, large, target.small)
        # a worker that is on a turn with its wanted model can stay there
        return place(of, self.models, total, large, target.small or large, work, large_refines=refines)

    def _worth_it(
        self, workers: Sequence[Worker], wanted: dict[str, str], target: Target, work: Workload, at: float
    ) -> tuple[dict[str, str], str]:
        """Return the wanted models; if a switch would not pay back, the present models and the reason. A necessary
        switch is made at any cost."""
        now, total = self._home, self._count_large(self._home)
        served = {self.rules.large, *self.rules.smalls}
        must = not target.least <= total <= target.most or any(model not in served for model in now.values())
        unable = any(worker.rates and now[worker.name] not in worker.rates for worker in workers)
        if wanted == now or must or unable:
            return wanted, ""
        better = self._better(wanted, target)
        if self._refused is None or self._refused[:2] != (target.small, better):
            self._refused = target.small, better, at
        rules = self.rules
        lasts_s = expected_s(at - self._refused[2], rules.period_s, rules.catch_up_s)
        seconds = min(switch_s(self._took_s, workers, wanted), lasts_s)
        steady = [worker for worker in workers if wanted[worker.name] == now[worker.name]]
        before = Stage(lasts_s, capacity_of(workers, now, rules.large), self._refines(target.mode, now))
        during = Stage(seconds, capacity_of(steady, now, rules.large), self._refines(target.mode, wanted))
        after = Stage(lasts_s - seconds, capacity_of(workers, wanted, rules.large), self._refines(target.mode, wanted))
        if pays_back(before, during, after, work, better=better):
            return wanted, ""
        switches = len(workers) - len(steady)
        return dict(now), f"{switches} × {seconds:.3g} s of switching would not pay back within {lasts_s:g} s"

    def _better(self, wanted: Mapping[str, str], target: Target) -> bool:
        """Return whether the wanted models give better images: a better small model, or the same one and more large
        workers."""
        smalls = self.rules.smalls
        if target.small not in smalls:  # no worker can run a small model, so all are large
            return True
        now = smalls.index(self._small), -self._count_large(self._home)
        return (smalls.index(target.small), -self._count_large(wanted)) < now

    def _decided(self, decision: Decision) -> Decision:
        before, self._home, self.urgent = self.models, dict(decision.models), False
        self._away = {
            name: model for name, model in self._away.items() if self._home.get(name, model) != model
        }  # fmt: skip
        self._mode = decision.target.mode
        if not decision.kept:  # while no worker can run a small model, keep the last wanted one
            self._small = decision.target.small or self._small
        return self._told(decision, before)

    def _told(self, decision: Decision, before: Mapping[str, str]) -> Decision:
        """Complete the decision with the models to publish, the switches and the turns."""
        models = dict(self.models)
        switches = tuple(name for name, model in models.items() if before[name] != model)
        for name in switches:
            self._asked_at[name] = decision.at
        self._asked_at = {name: at for name, at in self._asked_at.items() if name in models}
        said = ", ".join(f"{name} runs {model}, whose lane had no worker" for name, model in self._away.items())
        self._last = replace(decision, models=models, mode=self._mode, switches=switches, turns=said)
        return self._last

    # ---- turns

    def turn(self, waits: Waits, at: float) -> Decision | None:
        """Return the new allocation if a lane without workers has waited too long or a turn ends; None without a
        change. waits: seconds by served model."""
        if self._last is None:
            return None
        workers, before = self._roster.workers(), self.models
        bound_s = max(self.rules.turn_s, AMORTISED * median(self._took_s or [0.0]))
        stands = [self._stand(worker) for worker in workers if worker.name in self._home]
        away = turns(stands, waits, bound_s, at, self.rules.large)
        if away == self._away:
            return None
        self._away = away
        demand = self._demand(at)
        told = replace(self._last, at=at, demand=demand, work=self._work(demand), workers=tuple(workers), kept="")
        return self._told(told, before)

    def _stand(self, worker: Worker) -> WorkerSlot:
        told, (runs, since) = self.models[worker.name], self._runs[worker.name]
        # a worker can run the models it has measured; before any measurement, assume all
        able = frozenset(worker.rates) if worker.rates else frozenset((self.rules.large, *self.rules.smalls))
        return WorkerSlot(worker.name, self._home[worker.name], told, since if runs == told else None, able)
