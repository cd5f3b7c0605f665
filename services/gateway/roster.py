"""The roster of workers: the models that some worker runs, and those that no worker can run, by the workers' own
reports."""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from shared.domain.messages import MISSED_REPORTS, WorkerReported, silence_s

RESTART_S = 300.0
"""Seconds in which a worker that is gone may be back with its models: a restart loads weights, which takes minutes."""


class Roster:
    """The live workers by their reports. Queries return None (unknown) after a time without any report, and for one
    report interval after the next report. A worker that has not reported yet may run any model then."""

    def __init__(self, report_s: float, models: Collection[str] = ()) -> None:
        """models: the models of the gateway's settings."""
        self._models = models
        self._report_s, self._lapse_s = report_s, silence_s(report_s)
        self._heard: dict[str, tuple[WorkerReported, float]] = {}
        self._able: dict[str, tuple[frozenset[str], float]] = {}
        """Models that each worker had and could load by its last report, and that report's time."""
        self._last_at, self._whole_at = -inf, inf
        """Time of the last report, and the time from which every worker has had time to report."""

    def reported(self, report: WorkerReported, at: float) -> None:
        """Record a report. at: monotonic seconds."""
        if self._silent(at):
            self._whole_at = at + self._report_s
        self._last_at = at
        self._heard.pop(report.worker, None)
        self._heard = {worker: heard for worker, heard in self._heard.items() if at - heard[1] <= self._lapse_s}
        if not report.leaving:
            self._heard[report.worker] = report, at
        self._able[report.worker] = frozenset(report.serves) - frozenset(report.cannot), at
        self._able = {worker: able for worker, able in self._able.items() if at - able[1] <= RESTART_S}

    def models(self, now: float) -> frozenset[str] | None:
        return frozenset(report.model for report in self.reports(now)) or None

    def pixel_limit(self, model: str, now: float) -> int:
        """Return the most pixels of this model's requests in one step that the memory of some worker holds; 0 where a
        live worker that serves the model reported none."""
        limits = [dict(report.pixels).get(model, 0) for report in self.reports(now) if not _lacks(report, model)]
        return max(limits) if limits and all(limits) else 0

    def unable(self, now: float) -> frozenset[str]:
        """Return the models that each worker failed to load or has not in its settings; empty when no worker is
        known. A model of a worker that is gone counts for `RESTART_S`."""
        live = self.reports(now)
        lacking = {name for name in self._models if live and all(_lacks(report, name) for report in live)}
        return frozenset(lacking.difference(*(able for able, at in self._able.values() if now - at <= RESTART_S)))

    def unconsumed(self, now: float) -> frozenset[str]:
        """Return the models whose lane no live worker consumes: none is assigned the model, and none has loaded it.
        Such a job would wait for the monitor to switch a worker. Empty when no worker is known."""
        live = self.reports(now)
        ready = {report.model for report in live} | {model for report in live for model, _, _ in report.step_s}
        return frozenset(self._models if live else ()) - ready

    def reports(self, now: float) -> list[WorkerReported]:
        """Return the last report of every live worker; empty until every worker has had time to report."""
        if self._silent(now) or now < self._whole_at:
            return []
        return [report for report, at in self._heard.values() if now - at <= self._lapse_s]

    def _silent(self, now: float) -> bool:
        """Return whether all workers have missed reports at once: then the bus is away, not the workers."""
        return now - self._last_at > silence_s(self._report_s, MISSED_REPORTS - 1)


def _lacks(report: WorkerReported, model: str) -> bool:
    return model in report.cannot or (bool(report.serves) and model not in report.serves)
