"""Which lane a job waits in (design §3, Lanes)."""

from __future__ import annotations

from shared.messages import lane_of
from shared.types import Plan


def lane_for(plan: Plan) -> str:
    """The lane of the plan's model: misses, latent hits and named models mean nothing to another model."""
    return lane_of(plan.model)
