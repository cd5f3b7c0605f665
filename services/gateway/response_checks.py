"""Whether what another service answered can be used: a wrong answer is treated like no answer (design §1)."""

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
    """The embedding, if it is float32 of unit length; raises NonsenseError."""
    if not vector or len(vector) % 4:
        raise NonsenseError(f"an embedding of {len(vector)} bytes")
    norm = float(np.linalg.norm(vector_from(vector)))
    if not abs(norm - 1.0) < _UNIT_TOLERANCE:  # also refuses nan
        raise NonsenseError(f"an embedding of length {norm:.3g} instead of 1")
    return vector


def check_plan(
    plan: Plan, request: Request, card: ModelCard, served: Collection[str] = (), *, exact: bool = True
) -> Plan:
    """The plan, if this request, made for this model, can be drawn by it; raises NonsenseError.

    `served`: the models that may go on from a picture instead, where the request names none. `exact`: whether a stored
    picture may be the answer, whoever drew it where the request names none.
    """
    if plan.source is PlanSource.IMAGE:
        _check_refiners(plan, request, card, () if request.names_a_model else served)
    elif plan.model != card.name and (plan.source is not PlanSource.EXACT or request.names_a_model):
        raise NonsenseError(f"a plan for model {plan.model!r} instead of {card.name!r}")
    if plan.miss_model not in ("", card.name, *served):
        raise NonsenseError(f"a plan that {plan.miss_model!r} draws when its start is gone, which nobody runs")
    _check_start(plan, request, exact)
    if plan.fallback is not None:
        check_plan(plan.fallback, request, card, served, exact=False)
    if any(not 0 < step < request.steps for step in plan.capture_steps):
        raise NonsenseError(f"capture steps {plan.capture_steps} of {request.steps}")
    return plan


def _check_start(plan: Plan, request: Request, exact: bool) -> None:
    match plan.source:
        case PlanSource.NOISE:
            first, last = 0, 0
        case PlanSource.EXACT if exact:
            first, last = 0, request.steps
        case PlanSource.LATENT | PlanSource.IMAGE:
            first, last = 1, plan.run_steps(request.steps) - 1
        case _:
            raise NonsenseError(f"a plan from {plan.source}, which was not asked for")
    if not first <= plan.start_step <= last:
        raise NonsenseError(
            f"a start from {plan.source} after step {plan.start_step} of {plan.run_steps(request.steps)}"
        )
    if plan.source is not PlanSource.NOISE and not plan.state_key:
        raise NonsenseError(f"a plan from {plan.source} that names nothing to start from")
    if not 0 <= plan.fresh_noise <= 1:  # also refuses nan
        raise NonsenseError(f"{plan.fresh_noise} of the noise fresh")
    if not all(one.guidance is None or 0 <= one.guidance < inf for one in plan.may_run):
        raise NonsenseError(f"guidance {[one.guidance for one in plan.may_run]}")


def _check_refiners(plan: Plan, request: Request, card: ModelCard, served: Collection[str]) -> None:
    models = [one.model for one in plan.may_run]
    if plan.model not in models or not {*models} <= {card.name, *served}:
        raise NonsenseError(
            f"a picture that {', '.join(models) or 'nobody'} may go on from, planned for {plan.model!r}"
        )
    starts = [(one.start_step, one.run_steps(request.steps)) for one in plan.may_run]
    if not all(0 < start < steps for start, steps in starts):
        said = ", ".join(f"{start} of {steps}" for start, steps in starts)
        raise NonsenseError(f"starts after {said} steps")
    if any(one.model == card.name and one.steps not in (None, request.steps) for one in plan.may_run):
        raise NonsenseError(f"a run of {card.name!r} in other than the {request.steps} steps that were asked for")
