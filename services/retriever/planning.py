"""Planning: weigh every candidate, choose one, and record the reason of each choice (NIRVANA §5.3.1, §9; MoDM §5.2)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from services.retriever.cost import Offer, cheapest
from services.retriever.latents import Scales, too_different, weigh_latent
from services.retriever.pictures import WeighedHit, weigh_picture
from services.retriever.question import Question, Rules, StepIn
from services.retriever.variety import REFUSED
from shared.domain.plan_rules import capture_steps, noise_plan
from shared.domain.types import Candidate, Entry, Hit, Plan, PlanSource, Request
from shared.models.k_table import KTable


def hash_uniform(request: Request, purpose: str) -> float:
    """Return a number in [0, 1) from the request's seed and prompt alone. The same request gets the same number on
    every replica and in every replay."""
    key = f"{purpose}\0{request.seed}\0{request.prompt}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") / 2**64


def fresh_seed(seed: int, source: str) -> int:
    """Return the seed of the noise that replaces a share of the state's noise at K (NIRVANA §9). It is repeatable and
    never the run's own seed.

    Where both requests had the same seed, that seed's noise is already in the state. Injected again, it would add to
    itself, and the noise level after the step would be far too high. `source` is part of the key because its state may
    itself hold fresh noise of this request's seed.
    """
    key = f"fresh\0{seed}\0{source}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 1


def from_noise(question: Question, rules: Rules, reason: str, *, degraded: Sequence[str] = ()) -> Plan:
    """Return a plan of all T steps from noise."""
    plan = noise_plan(
        question.request,
        question.model,
        question.compat.weights_hash,
        rules.capture_steps,
        reason,
        degraded=degraded,
        predicted_hit=question.predicted_hit,
    )
    return replace(plan, relation=_closest(rules))


def from_repeat(question: Question, entry: Entry, degraded: Sequence[str] = ()) -> Plan:
    """Return the stored image of the same request (see shared.domain.exact_repeats). The plan names the model that
    generated the image. Where the request names no model, that may be another model than the one chosen for it."""
    chosen = Candidate(
        entry_id=entry.id,
        kind="exact",
        similarity=1.0,
        allowed_step=question.request.steps,
        start_step=question.request.steps,
        prompt=entry.prompt,
        chosen=True,
        reason="the same request was generated before",
        model=entry.model,
    )
    return Plan(
        source=PlanSource.EXACT,
        model=entry.model,
        start_step=question.request.steps,
        entry_id=entry.id,
        state_key=entry.picture_key,
        state_sha256=entry.picture_sha256,
        similarity=1.0,
        noise_seed=question.request.seed,
        weights_hash=entry.compat.weights_hash,
        candidates=(chosen,),
        reason="The same request with the same seed was generated before: its image is returned.",
        degraded=tuple(degraded),
        predicted_hit=question.predicted_hit,
    )


@dataclass(frozen=True, slots=True)
class Found:
    """Results of the searches; None: that search was not made, or failed."""

    latents: Sequence[Hit] | None
    pictures: Sequence[Hit] | None = None
    entries: Mapping[str, Entry] = field(default_factory=dict)


def from_candidates(
    question: Question, rules: Rules, found: Found, step_in: StepIn, *, degraded: Sequence[str] = ()
) -> Plan:
    """Return a plan with the cheapest usable start of all candidates (see services.retriever.cost).

    The plan never uses a K above the one that the candidate's own similarity allows. It never uses a state of another
    scope or encoder, or a latent of another compatibility key.
    """
    request, entries, scales = question.request, found.entries, Scales.of(question, rules, step_in)
    latents = [weigh_latent(scales, hit, entries.get(hit.entry_id)) for hit in found.latents or ()]
    pictures = [weigh_picture(request, rules.refiners, hit, entries.get(hit.entry_id)) for hit in found.pictures or ()]
    doubts = [doubt for one in pictures for doubt in one.doubts]
    similar = any(one.candidate.allowed_step for one in latents) if found.latents is not None else None
    if rules.variety is not None:
        related = rules.variety.related([*latents, *pictures], entries)
        latents, pictures = related[: len(latents)], related[len(latents) :]
    base = replace(
        from_noise(question, rules, _nothing(latents, pictures, rules, request)),
        degraded=tuple(dict.fromkeys((*degraded, *doubts))),
        candidates=(*(one.candidate for one in latents), *(one.candidate for one in pictures)),
        looked_up=found.latents is not None,
        found=similar,
        sampled=question.sampled,
        relation=_closest(rules, [one.candidate for one in (*latents, *pictures)]),
    )
    of_pictures = [one.offer for one in pictures if one.offer is not None]
    drawn = hash_uniform(request, "tie") if rules.variety is not None and rules.variety.draws else None
    best = cheapest([*(one.offer for one in latents if one.offer is not None), *of_pictures], drawn)
    if best is None:
        return base
    if hash_uniform(request, "epsilon") < rules.epsilon:
        reason = (
            f"Generated from noise although it could start after {best.candidate.start_step} "
            f"of {best.may_run[0].run_steps(request.steps)} steps: "
            f"epsilon = {rules.epsilon:g} of hits are generated anew, so that images stay diverse."
        )
        return replace(base, reason=reason, sampled=True)
    plan = _started(question, rules, base, best, entries)
    picture = cheapest(of_pictures, drawn)
    if best is not picture and picture is not None and not request.names_a_model:
        bare = replace(base, candidates=(), degraded=(), looked_up=False, found=None)
        plan = replace(plan, fallback=_started(question, rules, bare, picture, entries))
    return replace(plan, candidates=_judged([*latents, *pictures], best, request.steps))


def _started(question: Question, rules: Rules, base: Plan, best: Offer, entries: Mapping[str, Entry]) -> Plan:
    """Return the plan that takes this offer."""
    state, first, steps = best.state, best.may_run[0], question.request.steps
    source = PlanSource.IMAGE if state.is_picture else PlanSource.LATENT
    own_latents = first.model == question.model and len(best.may_run) == 1
    # latents of a model that was not asked for would not match later requests like this one
    kept = capture_steps(rules.capture_steps, steps, first.start_step, insert_on_hit=rules.insert_on_hit)
    hashes = {one.model: one.weights_hash for one in rules.refiners}
    return replace(
        base,
        source=source,
        model=first.model,
        start_step=first.start_step,
        entry_id=best.candidate.entry_id,
        state_key=state.key,
        state_sha256=state.sha256,
        state_codec=state.codec,
        similarity=best.candidate.similarity,
        capture_steps=kept if own_latents and question.request.cache.writes else (),
        may_run=best.may_run,
        fresh_noise=0.0 if state.is_picture else question.request.fresh_noise,
        noise_seed=fresh_seed(question.request.seed, best.candidate.entry_id),
        weights_hash=hashes.get(first.model, "") if state.is_picture else base.weights_hash,
        miss_model=question.model,
        relation=best.candidate.relation,
        root=entries[best.entry_id].root_id,
        reason=_hit_reason(best, steps, rules.table),
    )


def _closest(rules: Rules, candidates: Sequence[Candidate] = ()) -> str:
    return "" if rules.variety is None else rules.variety.closest(candidates).value


def _judged(weighed: Sequence[WeighedHit], best: Offer, steps: int) -> tuple[Candidate, ...]:
    """Return every candidate with the reason why it was or was not taken."""
    judged = []
    for one in weighed:
        candidate, offer = one.candidate, one.offer
        if offer is not None and offer is not best:
            candidate = replace(candidate, reason=f"{candidate.reason}; {_beaten(offer, best, steps)}")
        elif offer is best:
            reason = candidate.reason.replace("could start", "starts", 1)
            candidate = replace(candidate, chosen=True, reason=reason)
        judged.append(candidate)
    return tuple(judged)


def _beaten(offer: Offer, best: Offer, steps: int) -> str:
    """Return the reason why the best offer was taken instead of this one."""
    if offer.cost <= best.cost:
        same = offer.state.is_picture == best.state.is_picture
        if same and offer.similarity > best.similarity:
            return "about as similar as the chosen one, which the seed drew"
        return "less similar than the chosen one" if same else "costs as much as the chosen latent"
    if offer.state.is_picture or best.state.is_picture:
        return f"costs {offer.cost:.3g} steps of {steps}, the chosen one {best.cost:.3g}"
    return "saves fewer steps than the chosen one"


def _hit_reason(best: Offer, steps: int, table: KTable) -> str:
    one = best.candidate
    first, *rest = best.may_run
    if best.state.is_picture:
        others = "".join(
            f", {other.model} after {other.start_step}{f' of {other.steps}' if other.steps else ''}" for other in rest
        )
        return (
            f"Starts after {one.start_step} of {first.run_steps(steps)} steps with {first.model}{others} "
            f"from an image by {one.model} that has similarity {one.similarity:.3f} to the prompt."
        )
    is_hole = one.start_step < one.allowed_step
    hole = f" ({one.allowed_step} are allowed, but that state is not cached)" if is_hole else ""
    assumed = f" K table: {table.source}." if table.assumed else ""
    return (
        f"Starts after {one.start_step} of {steps} steps{hole} from an image whose prompt has similarity "
        f"{one.similarity:.3f}.{assumed}"
    )


def _nothing(latents: Sequence[WeighedHit], pictures: Sequence[WeighedHit], rules: Rules, request: Request) -> str:
    if not latents and not pictures:
        if rules.no_table:
            return f"Generated from noise: {rules.no_table}."
        return "Generated from noise: the cache has nothing that fits this model, size and caller."
    refused = [one.candidate for one in (*latents, *pictures) if one.candidate.reason.startswith(REFUSED)]
    if refused:  # each of them could have started the image
        nearest = max(refused, key=lambda one: one.similarity)
        return f"Generated from noise: the most similar usable entry is {nearest.reason}."
    if not latents:
        nearest = max((one.candidate for one in pictures), key=lambda one: one.similarity)
        return f"Generated from noise; the nearest cached image: {nearest.reason}."
    nearest_prompt = max(one.candidate.similarity for one in latents)
    if any(one.candidate.allowed_step for one in latents):
        return f"Generated from noise: similar prompts are cached ({nearest_prompt:.3f}), but without a usable state."
    return f"Generated from noise: the nearest cached prompt is {too_different(nearest_prompt, rules, request)}."
