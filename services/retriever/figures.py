"""Lookup metrics: each plan by its source and K, and the outcome of wider searches."""

from __future__ import annotations

from collections.abc import Sequence

from services.retriever.selection import Weighed
from shared.domain.types import Plan, PlanSource, Request
from shared.runtime.telemetry import METRICS


def count_plan(plan: Plan, request: Request) -> None:
    steps = plan.run_steps(request.steps)
    METRICS.lookups.labels(plan.source.value, str(round(plan.start_step * 50 / steps))).inc()
    if change := plan.for_deadline or ("late" if plan.soonest is not None else ""):
        METRICS.deadline_plans.labels(change).inc()
    if plan.relation:
        METRICS.relations.labels(plan.relation, plan.source.value).inc()
    left = [(one.steps or request.steps) - one.allowed_step
            for one in plan.candidates if one.kind == "latent" and one.allowed_step]  # fmt: skip
    if plan.source in (PlanSource.LATENT, PlanSource.NOISE) and not plan.sampled:
        METRICS.holes.inc(min(left, default=steps) < steps - plan.start_step)


def outcome(nearest: Sequence[Weighed], wider: Sequence[Weighed]) -> str:
    """Return the metric label: whether the wider search found a latent that starts later than the nearest ones do."""
    latest = [max((one.start_step for one in some), default=0) for some in (nearest, wider)]
    return "later_start" if latest[1] > latest[0] else "nothing_better"
