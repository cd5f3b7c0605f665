"""Which lane a job waits in, and by which plan (design §3, Lanes; MoDM §4.2)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from shared.messages import lane_of, refine_lane
from shared.misses import DRAWN, from_noise
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


def drawable(request: Request, plan: Plan, assigned: Collection[str]) -> Plan | None:
    """What waits where nobody takes it, as some worker may draw it: by `instead`; a picture that only models which
    nobody runs may go on from is a miss, unless the request names the model. None: it waits on where it is, since as a
    miss it would wait for the same model.

    In `refine` it would go from hand to hand: who takes it there may not draw it, and sends it back to where it was.
    """
    there = instead(plan, assigned)
    refiners = [one.model for one in there.may_run]
    if there.source is not PlanSource.IMAGE or request.names_a_model:
        return there
    if able := next((one for one in there.may_run if one.model in assigned), None):
        return there if there.model in assigned else replace(there, model=able.model, start_step=able.start_step)
    if there.miss_model in ("", *refiners):
        return None
    return from_noise(there, f"workers: nobody runs {', '.join(refiners)}{DRAWN}", "")
