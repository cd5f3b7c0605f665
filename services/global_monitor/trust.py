"""Whether a worker is as fast as it says: what it claims against the jobs that it is seen to finish."""

from __future__ import annotations

from dataclasses import dataclass

from services.global_monitor.demand import GENERATION

FAR = 2.0
"""A claim is believed while what is seen lies within this factor of it: pictures are also decoded and stored."""
FULL_BATCHES = 3
"""Evidence covers at least the time that so many full batches should take, else it is chance."""
RENEWED_S = 600.0
"""Evidence begins anew after this, so that it is of what a worker does now."""
LEAST = 0.01
"""Who finishes nothing counts for almost nothing, and for more again once it finishes something."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Of a time through which a worker had one model and never lacked work."""

    model: str = ""
    since: float = 0.0
    steps: float = 0.0

    def after(self, model: str, at: float, *, pressed: bool) -> Evidence:
        """Looked at again: begins anew when its model changed, or when there may have been nothing to do."""
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
    """What a worker's claims are multiplied by: 1 while it is believed, else seen over claimed; `before` while there is
    too little evidence. claimed: full generations per second with the evidence's model, of `generation` steps each."""
    seconds = at - evidence.since
    if claimed <= 0 or claimed * seconds < FULL_BATCHES * max_rows:
        return before
    seen = evidence.steps / generation / seconds / claimed
    return 1.0 if 1 / FAR <= seen <= FAR else max(seen, LEAST)
