"""Which models some worker runs, by what workers say of themselves."""

from __future__ import annotations

from shared.messages import WorkerReported

SILENCES = 3
"""Reports that may be missing before a worker is taken for gone."""


class Roster:
    """Nothing is known, and None said, until the first report, and once nobody reports any more: then any model may be
    run by workers that cannot be heard."""

    def __init__(self, report_s: float) -> None:
        self._lapse_s = SILENCES * report_s
        self._heard: dict[str, tuple[str, float]] = {}

    def reported(self, report: WorkerReported, at: float) -> None:
        """at: monotonic seconds."""
        self._heard.pop(report.worker, None)
        if not report.leaving:
            self._heard[report.worker] = report.model, at

    def models(self, now: float) -> frozenset[str] | None:
        live = {model for model, at in self._heard.values() if now - at <= self._lapse_s}
        return frozenset(live) or None
