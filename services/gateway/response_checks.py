"""Checks of other services' answers: a wrong answer is treated like no answer (docs/architecture.md, Request path)."""

from __future__ import annotations

from collections.abc import Collection
from math import inf

import numpy as np

from shared.domain.errors import AfterimageError
from shared.domain.types import Plan, PlanSource, Request, vector_from
from shared.models.card import ModelCard

_UNIT_TOLERANCE = 1e-2


class NonsenseError(AfterimageError):
    """A service answered something that cannot be true."""


def check_vector(vector: bytes) -> bytes:
    """Return the embedding if it is float32 of unit length. Raises NonsenseError."""
    if not vector or len(vector) % 4:
        raise NonsenseError(f"the embedding must be float32 values (got {len(vector)} bytes)")
    norm = float(np.linalg.norm(vector_from(vector)))
    if not abs(norm - 1.0) < _UNIT_TOLERANCE:  # also refuses nan
        raise NonsenseError(f"the embedding must have length 1 (got {norm:.3g})")
    return vector


def check_plan(
    plan: Plan, request: Request, card: ModelCard, served: Collection[str] = (), *, exact: bool = True
) -> Plan:
    """Return the plan if this request's model, or a model that it allows, can run it. Raises NonsenseError.

    served: the models that may continue from an image if the request names no model. exact: whether a stored image may
    be the answer, by any model if the request names none.
    """
    if plan.source is PlanSource.IMAGE:
        _check_refiners(plan, request, card, () if request.names_a_model else served)
    elif plan.model != card.name and not _may_be_of_another(plan, request, served):
        raise NonsenseError(f"the plan must be for model {card.name!r} (got {plan.model!r})")
    if plan.miss_model not in ("", card.name, *served):
        raise NonsenseError(f"the plan's miss_model must be a served model (got {plan.miss_model!r})")
    _check_start(plan, request, exact)
    _check_lead(plan, request)
    if plan.fallback is not None:
        check_plan(plan.fallback, request, card, served, exact=False)
    _check_steps(plan, request, card)
    return plan


def _may_be_of_another(plan: Plan, request: Request, served: Collection[str]) -> bool:
    """Return whether a plan that starts from no image may name another model: a stored image, or a run from noise that
    meets a deadline."""
    from_noise = plan.source is PlanSource.NOISE and plan.for_deadline and plan.model in served
    return not request.names_a_model and (plan.source is PlanSource.EXACT or bool(from_noise))


def _check_steps(plan: Plan, request: Request, card: ModelCard) -> None:
    """Check T of each run by the model asked for, and the captured steps."""
    may = {request.steps, *(card.auto_steps if request.steps_auto else ())}
    own = [one.run_steps(request.steps) for one in plan.may_run if one.model == card.name]
    if plan.source is not PlanSource.EXACT and not {*own, plan.miss_steps or request.steps} <= may:
        raise NonsenseError(f"T of model {card.name!r} must be one of {sorted(may)} (got {own}, {plan.miss_steps})")
    steps = plan.run_steps(request.steps)
    if plan.prompted_from >= steps:
        raise NonsenseError(f"prompted_from must be below {steps} (got {plan.prompted_from})")
    if any(not 0 < step < steps for step in plan.capture_steps):
        raise NonsenseError(f"capture_steps must be between 1 and {steps - 1} (got {plan.capture_steps})")


def _check_start(plan: Plan, request: Request, exact: bool) -> None:
    match plan.source:
        case PlanSource.NOISE:
            first, last = 0, 0
        case PlanSource.EXACT if exact:
            first, last = 0, plan.run_steps(request.steps)
        case PlanSource.LATENT | PlanSource.IMAGE | PlanSource.STITCHED:
            first, last = 1, plan.run_steps(request.steps) - 1
        case _:
            raise NonsenseError(
                f"the plan's source must be noise, latent or image, or exact if asked for (got {plan.source})"
            )
    if not first <= plan.start_step <= last:
        raise NonsenseError(
            f"start_step of a plan from {plan.source} must be between {first} and {last} (got {plan.start_step})"
        )
    if plan.source is not PlanSource.NOISE and not (plan.sources and all(one.key for one in plan.sources)):
        raise NonsenseError(f"a plan with source {plan.source} must name its state_key (got none)")
    if plan.source is PlanSource.STITCHED:
        _check_pair(plan)
    if plan.region_until:
        _check_region(plan, plan.run_steps(request.steps))
    if not 0 <= plan.fresh_noise <= 1:  # also refuses nan
        raise NonsenseError(f"fresh_noise must be between 0 and 1 (got {plan.fresh_noise})")
    if not all(one.guidance is None or 0 <= one.guidance < inf for one in plan.may_run):
        raise NonsenseError(f"guidance must be at least 0 and finite (got {[one.guidance for one in plan.may_run]})")


def _check_region(plan: Plan, steps: int) -> None:
    if plan.source is not PlanSource.LATENT:
        raise NonsenseError(f"a plan with source {plan.source} must have no region_until (got {plan.region_until})")
    if not plan.start_step < plan.region_until < steps:
        rule = f"region_until must be between {plan.start_step + 1} and {steps - 1}"
        raise NonsenseError(f"{rule} (got {plan.region_until})")


def _check_pair(plan: Plan) -> None:
    entries = {one.entry_id for one in plan.sources if one.mask_key}
    if len(plan.sources) != 2 or len(entries) != 2:
        raise NonsenseError(f"a stitched plan must name two entries with masks (got {plan.sources})")


def _check_lead(plan: Plan, request: Request) -> None:
    """Check the frames with which the clip begins. A retriever of an earlier version plans none."""
    if plan.source is PlanSource.EXACT or (plan.lead is None and not request.continue_job):
        return
    if plan.lead is None or not 0 < plan.lead.held <= min(plan.lead.frames, request.frames - 1):
        raise NonsenseError(f"a clip of {request.frames} frames must go on after fewer held frames (got {plan.lead})")


def _check_refiners(plan: Plan, request: Request, card: ModelCard, served: Collection[str]) -> None:
    models = [one.model for one in plan.may_run]
    if plan.model not in models or not {*models} <= {card.name, *served}:
        raise NonsenseError(
            f"may_run must list served models and the plan's own, {plan.model!r} (got {', '.join(models) or 'none'})"
        )
    starts = [(one.start_step, one.run_steps(request.steps)) for one in plan.may_run]
    if not all(0 < start < steps for start, steps in starts):
        said = ", ".join(f"{start} of {steps}" for start, steps in starts)
        raise NonsenseError(f"start_step must be between 1 and steps − 1 for each model (got {said})")
