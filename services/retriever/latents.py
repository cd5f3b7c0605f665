"""The starts that the latents of an entry allow: K by similarity, present states, scope and model (NIRVANA §5.3.1)."""

from __future__ import annotations

from dataclasses import dataclass

from services.retriever.cost import Offer, Pace, cost_of
from services.retriever.pictures import WeighedHit
from services.retriever.question import Question, Rules, StepIn
from services.retriever.selection import Ladder, Weighed, lowest, weigh
from shared.domain.types import Candidate, Entry, Hit, ModelPlan, Plan, Request, owner_key, visible_owners


def nearest_latents(question: Question, rules: Rules, plan: Plan) -> list[Weighed]:
    """Return each latent candidate with the step that its similarity allows, also where its entry cannot be used."""
    ladder = Ladder(rules.table, question.request.steps, question.request.savings, rules.table.floor)
    return [
        Weighed(one.start_step, one.similarity, one.entry_id, ladder.wished(one.similarity))
        for one in plan.candidates
        if one.kind == "latent"
    ]


@dataclass(frozen=True, slots=True)
class Scales:
    """The values with which every latent of a question is weighed."""

    question: Question
    rules: Rules
    ladder: Ladder
    owners: frozenset[str]
    compat: str
    step_in: StepIn

    @classmethod
    def of(cls, question: Question, rules: Rules, step_in: StepIn) -> Scales:
        request = question.request
        ladder = Ladder(rules.table, request.steps, request.savings, rules.table.floor)
        owners = frozenset(visible_owners(request.tenant, request.user))
        return cls(question, rules, ladder, owners, str(question.compat), step_in)


def weigh_latent(scales: Scales, hit: Hit, entry: Entry | None) -> WeighedHit:
    """Weigh the start that this candidate's latents allow."""
    request = scales.question.request
    refused = _refused(scales, entry)
    if refused or entry is None:
        return WeighedHit(Candidate(hit.entry_id, "latent", hit.similarity, 0, 0, reason=refused))
    at = {scales.step_in(state.step, entry.compat.steps): state for state in entry.latents}
    start, _, _, wished = weigh(scales.ladder, hit.entry_id, hit.similarity, at)
    if wished == 0:
        reason = too_different(hit.similarity, scales.rules, request)
    elif start == 0:
        reason = f"step {wished} is allowed, but no state at or before it is cached"
    else:
        hole = f"; the state at {wished} is not cached" if start < wished else ""
        reason = f"could start after step {start}{hole}"
    one = Candidate(
        hit.entry_id, "latent", hit.similarity, wished, start, entry.prompt, reason=reason, model=entry.model
    )
    if not start:
        return WeighedHit(one)
    cost = cost_of(Pace(), request.steps, start, picture=False)
    return WeighedHit(one, Offer(one, at[start], (ModelPlan(scales.question.model, start),), cost))


def _refused(scales: Scales, entry: Entry | None) -> str:
    """Return why this entry may not be used at all; empty when it may."""
    if entry is None:
        return "no longer in the cache"
    if owner_key(entry.scope, entry.tenant, entry.user) not in scales.owners:
        return "not visible to this caller"
    if entry.compat != scales.question.compat and str(entry.compat) != scales.compat:  # the string leaves out T
        return "generated with other weights, sampler, dtype or size"
    if entry.encoder_hash != scales.question.encoder_hash:
        return "embedded by another encoder"
    return ""


def too_different(similarity: float, rules: Rules, request: Request) -> str:
    """Return why this similarity allows no step."""
    if not rules.table.levels:
        return f"not usable (similarity {similarity:.3f}): no start kept this model's quality when profiled"
    least = lowest(rules.table, request.savings, rules.table.floor)
    if similarity > least:
        return f"similar enough ({similarity:.3f}), but {request.steps} steps are too few to skip any"
    return f"not similar enough: {similarity:.3f} is not above {least:.3f}"
