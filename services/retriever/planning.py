"""From candidates to a Plan: every candidate is weighed, and every choice says why (NIRVANA §5.3.1, §9)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from services.retriever.selection import Ladder, captured, preference, shifted, weigh
from shared.models.k_table import KTable
from shared.types import (
    CacheMode,
    Candidate,
    CompatKey,
    Entry,
    Hit,
    ModelPlan,
    Plan,
    PlanSource,
    Request,
    State,
    owner_key,
    visible_owners,
)

StepIn = Callable[[int, int], int]
"""(K, T of a state) → the step of this request's T with exactly that noise level; 0 when there is none."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be planned."""

    request: Request
    model: str
    compat: CompatKey
    encoder_hash: str = ""
    predicted_hit: bool | None = None
    sampled: bool = False
    """Looked up although a miss is predicted."""

    @property
    def reads(self) -> bool:
        return self.request.cache in (CacheMode.AUTO, CacheMode.READ)

    @property
    def writes(self) -> bool:
        return self.request.cache in (CacheMode.AUTO, CacheMode.WRITE)


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator decided."""

    table: KTable
    capture_steps: tuple[int, ...] = (5, 10, 15, 20, 25)
    """K of T = 50."""
    epsilon: float = 0.0
    """Share of hits drawn from noise, so that pictures stay diverse (NIRVANA §9)."""
    insert_on_hit: bool = True


def lot(request: Request, purpose: str) -> float:
    """A number in [0, 1) that depends on nothing but the request's seed and prompt: the same request draws the same
    lot on every replica and in every replay."""
    key = f"{purpose}\0{request.seed}\0{request.prompt}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") / 2**64


def fresh_seed(seed: int, source: str) -> int:
    """The seed of the noise that replaces a share of `source`'s at K (NIRVANA §9), repeatable and never the run's own.

    A request's own seed made the noise that the state's rest comes from when both pictures were asked for with the same
    seed: injected again it would add to itself, and the noise level after the step would be far too high. The source is
    in it because its state may hold fresh noise of this seed itself.
    """
    key = f"fresh\0{seed}\0{source}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 1


def from_noise(question: Question, rules: Rules, reason: str, *, degraded: Sequence[str] = ()) -> Plan:
    """All T steps."""
    return Plan(
        source=PlanSource.NOISE,
        model=question.model,
        capture_steps=_capture(question, rules, start=0),
        may_run=(ModelPlan(question.model, 0),),
        noise_seed=question.request.seed,
        weights_hash=question.compat.weights_hash,
        reason=reason,
        degraded=tuple(degraded),
        predicted_hit=question.predicted_hit,
    )


def from_repeat(question: Question, entry: Entry, degraded: Sequence[str] = ()) -> Plan:
    """The stored picture itself: same prompt, negative prompt, weights, size, seed, guidance and steps."""
    chosen = Candidate(
        entry_id=entry.id,
        kind="exact",
        similarity=1.0,
        wished_step=question.request.steps,
        start_step=question.request.steps,
        prompt=entry.prompt,
        chosen=True,
        reason="the same request was drawn before",
    )
    return Plan(
        source=PlanSource.EXACT,
        model=question.model,
        start_step=question.request.steps,
        entry_id=entry.id,
        state_key=entry.picture_key,
        state_sha256=entry.picture_sha256,
        similarity=1.0,
        noise_seed=question.request.seed,
        weights_hash=question.compat.weights_hash,
        candidates=(chosen,),
        reason="The same request with the same seed was drawn before: its picture is returned.",
        degraded=tuple(degraded),
        predicted_hit=question.predicted_hit,
    )


def from_candidates(
    question: Question,
    rules: Rules,
    hits: Sequence[Hit],
    entries: Mapping[str, Entry],
    step_in: StepIn,
    *,
    degraded: Sequence[str] = (),
) -> Plan:
    """The best usable state of all candidates: the one that leaves the fewest steps, ties to the more similar.

    Never a K above the one its own similarity allows, never a state of another scope, encoder or compatibility key.
    """
    weighed = [_weigh(question, rules, hit, entries.get(hit.entry_id), step_in) for hit in hits]
    usable = [(one, state) for one, state in weighed if state is not None]
    base = from_noise(question, rules, _nothing(weighed, rules, question.request), degraded=degraded)
    base = replace(
        base,
        candidates=tuple(one for one, _ in weighed),
        looked_up=True,
        found=any(one.wished_step for one, _ in weighed),
        sampled=question.sampled,
    )
    if not usable:
        return base
    best, state = max(usable, key=lambda pair: preference(pair[0]))
    if lot(question.request, "epsilon") < rules.epsilon:
        reason = (
            f"Drawn from noise although it could start after {best.start_step} of {question.request.steps} steps: "
            f"a share of {rules.epsilon:g} of hits is, so that pictures stay diverse."
        )
        return replace(base, reason=reason, sampled=True)
    return replace(
        base,
        source=PlanSource.LATENT,
        start_step=best.start_step,
        entry_id=best.entry_id,
        state_key=state.key,
        state_sha256=state.sha256,
        state_codec=state.codec,
        similarity=best.similarity,
        capture_steps=_capture(question, rules, start=best.start_step),
        may_run=(ModelPlan(question.model, best.start_step),),
        fresh_noise=question.request.fresh_noise,
        noise_seed=fresh_seed(question.request.seed, best.entry_id),
        candidates=_judged(weighed, best),
        reason=_hit_reason(best, question.request.steps),
    )


def _capture(question: Question, rules: Rules, start: int) -> tuple[int, ...]:
    """Steps after which the latent is kept; on a hit only those after its start are new (FlexCache keeps them too)."""
    if not question.writes:
        return ()
    return captured(rules.capture_steps, question.request.steps, start, insert_on_hit=rules.insert_on_hit)


def _weigh(
    question: Question, rules: Rules, hit: Hit, entry: Entry | None, step_in: StepIn
) -> tuple[Candidate, State | None]:
    """What this candidate could do, and the state it would do it with."""
    request = question.request
    refused = _refused(question, entry)
    if refused or entry is None:
        return Candidate(hit.entry_id, "latent", hit.similarity, 0, 0, reason=refused), None
    at = {step_in(state.step, entry.compat.steps): state for state in entry.states}
    ladder = Ladder(rules.table, request.steps, request.savings)
    start, _, _, wished = weigh(ladder, hit.entry_id, hit.similarity, at)
    if wished == 0:
        reason = _too_different(hit.similarity, rules, request)
    elif start == 0:
        reason = f"step {wished} is allowed, but no state at or before it is there"
    else:
        hole = f"; the state at {wished} is not there" if start < wished else ""
        reason = f"could start after step {start}{hole}"
    weighed = Candidate(hit.entry_id, "latent", hit.similarity, wished, start, entry.prompt, reason=reason)
    return weighed, at[start] if start else None


def _refused(question: Question, entry: Entry | None) -> str:
    """Why this entry may not be used at all; empty when it may."""
    if entry is None:
        return "no longer in the cache"
    if owner_key(entry.scope, entry.tenant, entry.user) not in visible_owners(
        question.request.tenant, question.request.user
    ):
        return "not visible to this caller"
    if str(entry.compat) != str(question.compat):
        return "drawn with other weights, sampler, number format or size"
    if entry.encoder_hash != question.encoder_hash:
        return "embedded by another encoder"
    return ""


def _judged(weighed: Sequence[tuple[Candidate, State | None]], best: Candidate) -> tuple[Candidate, ...]:
    """Every candidate with the reason it was or was not taken."""
    judged = []
    for one, state in weighed:
        if one.entry_id == best.entry_id:
            one = replace(one, chosen=True, reason=one.reason.replace("could start", "starts", 1))
        elif state is not None:
            less = "saves fewer steps" if one.start_step < best.start_step else "less similar"
            one = replace(one, reason=f"{one.reason}; {less} than the chosen one")
        judged.append(one)
    return tuple(judged)


def _hit_reason(best: Candidate, steps: int) -> str:
    is_hole = best.start_step < best.wished_step
    hole = f" ({best.wished_step} are allowed, but that state is not there)" if is_hole else ""
    return (
        f"Starts after {best.start_step} of {steps} steps{hole} from a picture whose prompt has similarity "
        f"{best.similarity:.3f}."
    )


def _nothing(weighed: Sequence[tuple[Candidate, State | None]], rules: Rules, request: Request) -> str:
    if not weighed:
        return "Drawn from noise: the cache has nothing that fits this model, size and caller."
    nearest = max(one.similarity for one, _ in weighed)
    if any(one.wished_step for one, _ in weighed):
        return f"Drawn from noise: similar prompts are cached ({nearest:.3f}), but no state they allow is there."
    return f"Drawn from noise: the nearest cached prompt is {_too_different(nearest, rules, request)}."


def _too_different(similarity: float, rules: Rules, request: Request) -> str:
    if not rules.table.levels:
        return f"of no use (similarity {similarity:.3f}): no reuse kept this model's quality when it was profiled"
    lowest = shifted(rules.table.lowest_similarity, request.savings)
    if similarity > lowest:
        return f"similar enough ({similarity:.3f}), but {request.steps} steps are too few to skip any"
    return f"not similar enough: {similarity:.3f} is not above {lowest:.3f}"
