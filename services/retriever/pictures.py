"""The starts that a finished image allows: for each model that may continue from it, its own k (MoDM §5.1, §5.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from services.retriever.cost import Offer, Pace, cost_of
from services.retriever.selection import allowed_step, lowest
from shared.domain.types import Candidate, Entry, Hit, ModelPlan, Request, owner_key, visible_owners
from shared.models.tables_in_force import ImageTable

TableOf = Callable[[str, str], ImageTable]
"""(name, weights hash) of the model that generated an image → the table for starts from that image."""


@dataclass(frozen=True, slots=True)
class OwnRun:
    """The run of a model whose T is not the request's (MoDM §6: 10 steps of a Turbo beside 50 of the large model)."""

    steps: int
    """T."""
    step_near: Callable[[int, int], int]
    """(k, T of a table) → the step of this run whose noise level is nearest; 0: the run's start."""


@dataclass(frozen=True, slots=True)
class Refiner:
    """A model that may continue from an image."""

    model: str
    weights_hash: str
    table_of: TableOf
    pace: Pace = field(default_factory=Pace)
    guidance: float | None = None
    """None: the request's own."""
    small: bool = False
    own_run: OwnRun | None = None
    """None: as many steps as the request's."""


@dataclass(frozen=True, slots=True)
class WeighedHit:
    """A cached image or latent that was found, the start that it allows, and warnings about the tables."""

    candidate: Candidate
    offer: Offer | None = None
    doubts: tuple[str, ...] = ()


def weigh_picture(request: Request, refiners: Sequence[Refiner], hit: Hit, entry: Entry | None) -> WeighedHit:
    """Weigh the starts that the image of this hit allows; k·T/50 rounds down, and no table goes beyond 30 of 50 (MoDM
    §5.2).

    An image can be brought to every noise level, so there are no holes. Its size may differ from the request's. The
    search already filtered by encoder.
    """
    refused = _refused(request, entry)
    if refused or entry is None:
        prompt, model = (entry.prompt, entry.model) if entry else ("", "")
        return WeighedHit(Candidate(hit.entry_id, "image", hit.similarity, 0, 0, prompt, reason=refused, model=model))
    found = [(one, one.table_of(entry.model, entry.compat.weights_hash)) for one in refiners]
    starts = [_start(request, hit, one, table) for one, table in found]
    able = sorted((start for start in starts if start is not None), key=lambda start: start[0])
    doubts = tuple(table.why_not for _, table in found if table.misfit)
    state = entry.picture
    if not able or state is None:
        reason = _too_different(hit, request, found)
        return WeighedHit(
            Candidate(hit.entry_id, "image", hit.similarity, 0, 0, entry.prompt, reason=reason, model=entry.model),
            doubts=doubts,
        )
    may_run = tuple(one for _, one in able)
    first = may_run[0].start_step
    candidate = Candidate(
        hit.entry_id, "image", hit.similarity, first, first, entry.prompt, reason=_could(may_run, entry, request),
        model=entry.model,
    )  # fmt: skip
    return WeighedHit(candidate, Offer(candidate, state, may_run, able[0][0][0]), doubts)


_Rank = tuple[float, bool, str]


def _start(request: Request, hit: Hit, refiner: Refiner, found: ImageTable) -> tuple[_Rank, ModelPlan] | None:
    """Return the model's rank (cheapest first, the small model among equals) and its start; None where it cannot
    start."""
    if found.table is None:
        return None
    own, table = refiner.own_run, found.table
    if own is None:
        step = allowed_step(table, hit.similarity, request.steps, request.savings, table.floor)
    else:
        k = allowed_step(table, hit.similarity, table.steps, request.savings, table.floor)
        step = own.step_near(k, table.steps) if k else 0
    if step == 0:
        return None
    steps = own.steps if own else request.steps
    cost = cost_of(refiner.pace, steps, step, picture=True)
    if own and cost >= request.steps:  # the model that was asked for is faster from noise
        return None
    plan = ModelPlan(refiner.model, step, refiner.guidance, own.steps if own else None)
    return (cost, not refiner.small, refiner.model), plan


def _refused(request: Request, entry: Entry | None) -> str:
    """Return why this image may not be used at all; empty when it may."""
    if entry is None:
        return "no longer in the cache"
    if owner_key(entry.scope, entry.tenant, entry.user) not in visible_owners(request.tenant, request.user):
        return "not visible to this caller"
    if entry.picture is None:
        return "its picture is no longer in the cache"
    return ""


def _could(may_run: Sequence[ModelPlan], entry: Entry, request: Request) -> str:
    first, *others = may_run
    who = "".join(f", {one.model} after step {_of(one)}" for one in others)
    size = entry.compat.size
    resized = "" if size == request.size else f", resized from {size}"
    return f"{first.model} could start after step {_of(first)}{who}{resized}"


def _of(plan: ModelPlan) -> str:
    """Format the start step, with T where the model has its own."""
    return f"{plan.start_step} of {plan.steps}" if plan.steps else f"{plan.start_step}"


def _too_different(hit: Hit, request: Request, found: Sequence[tuple[Refiner, ImageTable]]) -> str:
    tables = [one.table for _, one in found if one.table is not None]
    if not tables:
        return next((one.why_not for _, one in found), "no served model continues from images")
    least = min(lowest(table, request.savings, table.floor) for table in tables)
    if least > 1:
        return "not usable: no start from such an image kept the quality when profiled"
    if hit.similarity > least and any(one.own_run for one, _ in found):
        return f"similar enough ({hit.similarity:.3f}), but no start from it takes less than {request.steps} steps do"
    if hit.similarity > least:
        return f"similar enough ({hit.similarity:.3f}), but {request.steps} steps are too few to skip any"
    return f"not similar enough: {hit.similarity:.3f} is not above {least:.3f}"
