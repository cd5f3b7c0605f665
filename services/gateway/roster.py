"""The roster of workers: the models that some worker runs, and those that no worker can load, by the workers' own
reports."""

from __future__ import annotations

from math import inf

from shared.domain.messages import MISSED_REPORTS, WorkerReported, silence_s


class Roster:
    """The live workers by their reports. Queries return None (unknown) after a time without any report, and for one
    report interval after the next report. A worker that has not reported yet may run any model then."""

    def __init__(self, report_s: float) -> None:
        self._report_s, self._lapse_s = report_s, silence_s(report_s)
        self._heard: dict[str, tuple[WorkerReported, float]] = {}
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

    def models(self, now: float) -> frozenset[str] | None:
        return frozenset(report.model for report in self._live(now)) or None

    def unable(self, now: float) -> frozenset[str]:
        """Return the models that every worker failed to load; empty when no worker is known."""
        failed = [frozenset(report.cannot) for report in self._live(now)]
        return frozenset.intersection(*failed) if failed else frozenset()

    def _live(self, now: float) -> list[WorkerReported]:
        """Return the last report of every live worker; empty until every worker has had time to report."""
        if self._silent(now) or now < self._whole_at:
            return []
        return [report for report, at in self._heard.values() if now - at <= self._lapse_s]

    def _silent(self, now: float) -> bool:
        """Return whether all workers have missed reports at once: then the bus is away, not the workers."""
        return now - self._last_at > silence_s(self._report_s, MISSED_REPORTS - 1)
