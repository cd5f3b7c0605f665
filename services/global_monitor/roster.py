"""The workers by their reports: dropped when silent, and trusted as far as their finished jobs confirm their claims."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from services.global_monitor.demand import GENERATION, Generations
from services.global_monitor.throughput import Rates, by_kind, rates_of
from services.global_monitor.trust import Evidence, credit
from shared.domain.messages import JobSucceeded, WorkerReported


@dataclass(frozen=True, slots=True)
class Worker:
    """A live worker."""

    name: str
    kind: str
    model: str
    """The model that the worker reports to run."""
    rows: int
    max_rows: int
    rates: Rates
    """Full generations per second by model, corrected by the credit; models that the worker cannot run are left out."""
    credit: float = 1.0
    """Factor on the worker's claims; not 1 if the worker's speed differs from its claims."""


@dataclass(frozen=True, slots=True)
class _Heard:
    report: WorkerReported
    at: float
    claims: Rates
    evidence: Evidence
    credit: float = 1.0


class Roster:
    """The live workers. lapse_s: seconds without a report after which a worker counts as dead. generations: steps of a
    full generation by model."""

    def __init__(self, lapse_s: float, generations: Generations | None = None) -> None:
        self._lapse_s, self._generations = lapse_s, generations or {}
        self._heard: dict[str, _Heard] = {}

    def reported(self, report: WorkerReported, at: float) -> bool:
        """Record a report; return whether it changes the set of workers or the models that one can run."""
        before = self._heard.get(report.worker)
        if report.leaving:
            return self._heard.pop(report.worker, None) is not None
        claims = rates_of(report.step_s, self._generations)
        if before is None:
            self._heard[report.worker] = _Heard(report, at, claims, Evidence(report.model, at))
            return True
        self._heard[report.worker] = replace(before, report=report, at=at, claims=claims)
        return before.report.cannot != report.cannot

    def finished(self, fact: JobSucceeded) -> None:
        """Add a finished job to the worker's evidence. Workers also run models assigned to no worker. A job of such a
        model is converted to the steps of the worker's assigned model that take as long by the worker's claims."""
        heard = self._heard.get(fact.worker)
        if heard is not None and (rate := heard.claims.get(fact.model)):
            own = heard.evidence.model
            per_s = heard.claims.get(own, 0.0) * self._generation(own), rate * self._generation(fact.model)
            steps = fact.steps_run * per_s[0] / per_s[1]
            self._heard[fact.worker] = replace(heard, evidence=heard.evidence.finished(steps))

    def _generation(self, model: str) -> float:
        return self._generations.get(model, GENERATION)

    def lapse(self, at: float) -> tuple[str, ...]:
        """Drop silent workers; return their names."""
        gone = tuple(name for name, heard in self._heard.items() if at - heard.at > self._lapse_s)
        for name in gone:
            del self._heard[name]
        return gone

    def judge(self, at: float, pressed: Callable[[WorkerReported], bool]) -> None:
        """Compare claims with evidence. pressed: returns whether a worker cannot lack work.

        A worker with clips is not judged: a clip takes many times an image's steps, and is evidence only at its end.
        """
        for name, heard in self._heard.items():
            model, claimed = heard.report.model, heard.claims.get(heard.report.model, 0.0)
            evidence = heard.evidence.after(model, at, pressed=pressed(heard.report) and not heard.report.clips)
            generation = self._generation(model)
            found = credit(claimed, heard.report.max_rows, evidence, at, heard.credit, generation)
            self._heard[name] = replace(heard, evidence=evidence, credit=found)

    def workers(self) -> list[Worker]:
        """Return the workers by name. Rates that a worker has not measured are taken from workers of its kind."""
        typical = by_kind((heard.report.kind, heard.claims) for heard in self._heard.values())
        return [self._worker(self._heard[name], typical) for name in sorted(self._heard)]

    def _worker(self, heard: _Heard, typical: dict[tuple[str, str], float]) -> Worker:
        report = heard.report
        of_kind = {model: rate for (kind, model), rate in typical.items() if kind == report.kind}
        rates = {
            model: rate * heard.credit
            for model, rate in (of_kind | dict(heard.claims)).items()
            if model not in report.cannot
        }
        return Worker(report.worker, report.kind, report.model, report.rows, report.max_rows, rates, heard.credit)
