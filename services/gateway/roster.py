"""Which models some worker runs, and which none can, by what workers say of themselves."""

from __future__ import annotations

from math import inf

from shared.domain.messages import MISSED_REPORTS, WorkerReported, silence_s


class Roster:
    """Nothing is known, and None said, once nobody reports any more, and until everybody had the time to after the
    first report that follows: meanwhile any model may be run by workers that were not heard."""

    def __init__(self, report_s: float) -> None:
        self._report_s, self._lapse_s = report_s, silence_s(report_s)
        self._heard: dict[str, tuple[WorkerReported, float]] = {}
        self._last_at, self._whole_at = -inf, inf
        """When anybody was heard last, and from when on everybody was."""

    def reported(self, report: WorkerReported, at: float) -> None:
        """at: monotonic seconds."""
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
        """Models that every worker failed to load; of none when nothing is known."""
        failed = [frozenset(report.cannot) for report in self._live(now)]
        return frozenset.intersection(*failed) if failed else frozenset()

    def _live(self, now: float) -> list[WorkerReported]:
        """The last word of everybody who is there; nobody's while not everybody was heard."""
        if self._silent(now) or now < self._whole_at:
            return []
        return [report for report, at in self._heard.values() if now - at <= self._lapse_s]

    def _silent(self, now: float) -> bool:
        """Whether all workers have missed reports at once: then the bus is away, not the workers."""
        return now - self._last_at > silence_s(self._report_s, MISSED_REPORTS - 1)
