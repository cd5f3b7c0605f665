"""A hit that cannot be drawn as one: its plan without the start."""

from __future__ import annotations

from dataclasses import replace

from shared.types import ModelPlan, Plan, PlanSource

DRAWN = "; drawn from noise"
"""How the notes on a plan end that lost its start."""


def from_noise(plan: Plan, why: str, weights_hash: str) -> Plan:
    """The plan without its start, saying why; drawn by whom the plan names for a miss."""
    model = plan.miss_model or plan.model
    return replace(
        plan,
        source=PlanSource.NOISE,
        model=model,
        may_run=(ModelPlan(model, 0),),
        fallback=None,
        start_step=0,
        entry_id="",
        state_key="",
        state_sha256="",
        state_codec="",
        fresh_noise=0.0,
        weights_hash=weights_hash,
        degraded=(*plan.degraded, why) if why else plan.degraded,
        reason=f"Drawn from noise after all: {why.removesuffix(DRAWN)}. Planned: {plan.reason}" if why else plan.reason,
    )
