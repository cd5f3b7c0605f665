"""Which lane a job waits in, and by which plan (design §3, Lanes; MoDM §4.2)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from shared.messages import lane_of, refine_lane
from shared.types import Plan, PlanSource, Request


def lane_for(request: Request, plan: Plan, served: Collection[str]) -> str:
    """`refine` for image hits that name no model: whoever has the time takes them, with its own k. Else the lane of the
    plan's model: misses, latent hits and named models mean nothing to another, and where one model is served there is
    no other."""
    shared = plan.source is PlanSource.IMAGE and not request.names_a_model and len(served) > 1
    return refine_lane(request.modality) if shared else lane_of(plan.model)


def only_model(plan: Plan) -> str:
    """The one model that may draw this image hit, which the monitor must not take for work of the others too; empty:
    several may, or it is no image hit."""
    return plan.may_run[0].model if plan.source is PlanSource.IMAGE and len(plan.may_run) == 1 else ""


def instead(plan: Plan, assigned: Collection[str] | None) -> Plan:
    """The plan's fallback where nobody runs its model, so that it can wait in `refine`; else the plan itself.

    `assigned`: the models that some worker runs; None: unknown, and then any may be.
    """
    if plan.fallback is None or assigned is None or plan.model in assigned:
        return plan
    if not any(one.model in assigned for one in plan.fallback.may_run):
        return plan
    why = f"workers: nobody runs {plan.model}, whose latent this would start from"
    return replace(
        plan.fallback,
        candidates=plan.candidates,
        degraded=(*plan.degraded, why),
        reason=f"{plan.fallback.reason} Planned from a latent: {plan.reason}",
        predicted_hit=plan.predicted_hit,
        looked_up=plan.looked_up,
        found=plan.found,
        sampled=plan.sampled,
    )
