"""Trust in workers' claims: the claimed throughput is compared with the jobs that a worker finishes."""

from __future__ import annotations

from dataclasses import dataclass

from services.global_monitor.demand import GENERATION

FAR = 2.0
"""A claim is trusted while the measured throughput lies within this factor of it: images are also decoded and
stored."""
FULL_BATCHES = 3
"""Evidence must cover at least the time of this many full batches, else it may be chance."""
RENEWED_S = 600.0
"""Evidence is discarded after this many seconds, so that it describes the present."""
LEAST = 0.01
"""Lowest credit. A worker that finishes nothing counts for almost nothing, and regains credit once it finishes jobs."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Steps finished in a time through which a worker had one model and never lacked work."""

    model: str = ""
    since: float = 0.0
    steps: float = 0.0

    def after(self, model: str, at: float, *, pressed: bool) -> Evidence:
        """Return the evidence after another check: new evidence when the model changed, or when the worker may have
        lacked work."""
        goes_on = pressed and model == self.model and at - self.since <= RENEWED_S
        return self if goes_on else Evidence(model, at)

    def finished(self, steps: float) -> Evidence:
        return Evidence(self.model, self.since, self.steps + steps)


def credit(
    claimed: float,
    max_rows: int,
    evidence: Evidence,
    at: float,
    before: float = 1.0,
    generation: float = GENERATION,
) -> float:
    """Return the factor on a worker's claims: 1 while the claims are trusted, else measured over claimed; `before`
    while there is too little evidence.

    claimed: full generations per second with the evidence's model, of `generation` steps each.
    """
    seconds = at - evidence.since
    if claimed <= 0 or claimed * seconds < FULL_BATCHES * max_rows:
        return before
    seen = evidence.steps / generation / seconds / claimed
    return 1.0 if 1 / FAR <= seen <= FAR else max(seen, LEAST)
