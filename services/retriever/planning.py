"""Planning: from the starts that the bound allows to a plan with the reason of its choice (NIRVANA §5.3.1, §9; MoDM
§5.2)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from services.retriever.bounds import PAIR, Near
from services.retriever.choice import choose, judged
from services.retriever.pairs import SHOWN, background_root, best_first, said_pair, sources_of, starts_pairs
from services.retriever.question import Question, Rules
from services.retriever.regions import with_region
from services.retriever.selection import Weighed
from services.retriever.starts import Found, Option, Start, starts_images, starts_latents, starts_noise
from services.retriever.variety import REFUSED
from shared.domain.identity import same_caller
from shared.domain.plan_rules import capture_steps, noise_plan
from shared.domain.types import Candidate, Entry, ModelPlan, Plan, PlanSource, Request, Source


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


def from_noise(
    question: Question, rules: Rules, reason: str, *, degraded: Sequence[str] = (), start: Start | None = None
) -> Plan:
    """Return a plan from noise. start: the run; None: the cheapest one that keeps the quality."""
    start = start or starts_noise(question, rules, _varied(rules))[0]
    if starts_noise(question, rules)[0].steps < start.steps:
        results = f"{question.request.modality.noun}s of one prompt"
        reason += f" T = {start.steps}, because no smaller T was measured to keep variety among {results}."
    plan = noise_plan(
        question.request,
        question.model,
        question.compat.weights_hash,
        rules.capture_steps,
        reason,
        degraded=degraded,
        predicted_hit=question.predicted_hit,
        steps=start.steps if question.choices else None,
        prompted_from=start.prompted_from,
        step_reuse=question.compat.step_reuse,
    )
    return replace(plan, relation=_closest(rules))


def from_repeat(question: Question, entry: Entry, degraded: Sequence[str] = ()) -> Plan:
    """Return the stored image of the same request (see shared.domain.exact_repeats). The plan names the model that
    generated the image. Where the request names no model, that may be another model than the one chosen for it."""
    steps = entry.compat.steps if question.request.steps_auto else question.request.steps
    request, noun = question.request, question.request.modality.noun
    own = same_caller(request.tenant, request.user, entry.tenant, entry.user)
    chosen = Candidate(
        entry_id=entry.id,
        kind="exact",
        similarity=1.0,
        allowed_step=steps,
        start_step=steps,
        prompt=entry.prompt if own else "",
        chosen=True,
        reason="the same request was generated before",
        model=entry.model,
    )
    return Plan(
        source=PlanSource.EXACT,
        model=entry.model,
        start_step=steps,
        may_run=(ModelPlan(entry.model, steps, steps=steps),) if question.request.steps_auto else (),
        sources=(Source(entry.id, entry.picture_key, entry.picture_sha256),),
        similarity=1.0,
        noise_seed=question.request.seed,
        weights_hash=entry.compat.weights_hash,
        candidates=(chosen,),
        reason=f"The same request with the same seed was generated before: its {noun} is returned.",
        root=entry.root_id,
        background_root=entry.background_root,
        degraded=tuple(degraded),
        predicted_hit=question.predicted_hit,
    )


@dataclass(frozen=True)
class Options:
    """All starts of one request: from the latents and images that were found, and from noise."""

    question: Question
    rules: Rules
    latents: list[Option]
    pairs: list[Option]
    images: list[Option]
    noise: Start
    """The cheapest run from noise."""
    similar: bool | None
    """The bound allows a start from one of the latents that costs less than noise; None without a search for them."""

    searched: bool = False
    """The index was searched for latents or pairs."""
    varied: bool = False
    """The image must differ from other images of its prompt."""

    @property
    def every(self) -> list[Option]:
        return [*self.latents, *self.pairs, *self.images]

    @property
    def candidates(self) -> list[Candidate]:
        return [one.candidate for one in self.every]

    def nearest_latents(self) -> list[Weighed]:
        """Return each latent with the steps that it saves and those that the bound allows to save, beyond what the
        cheapest run from noise saves."""
        cost = self.noise.cost
        return [
            Weighed(
                _saved(cost, one.starts[0].cost if one.starts else math.inf),
                one.candidate.similarity,
                one.candidate.entry_id,
                _saved(cost, one.least),
            )
            for one in self.latents
        ]


def options_of(question: Question, rules: Rules, found: Found) -> Options:
    """Weigh everything that was found. A start never goes beyond the K that the bound allows for its own candidate. It
    never uses a state of another scope or encoder, or a latent of another compatibility key."""
    latents, images = starts_latents(question, rules, found), starts_images(question, rules, found)
    pairs = starts_pairs(question, rules, found)
    found_here = [one.candidate for one in (*latents, *images)]
    varied = _varied(rules, found_here)
    noise = starts_noise(question, rules, varied)[0]
    similar = any(one.candidate.allowed_step and one.least < noise.cost for one in latents)
    if (variety := rules.variety) is not None:
        rerolls = variety.rerolls(found_here)
        latents = [_ruled(rules, one, rerolls) for one in latents]
        images = [_ruled(rules, one, rerolls) for one in images]
        pairs = [_ruled(rules, one, rerolls) for one in pairs]
    similar_one, searched = (None, found.objects is not None) if found.latents is None else (similar, True)
    return Options(question, rules, latents, best_first(pairs)[:SHOWN], images, noise, similar_one, searched, varied)


def plan_of(options: Options, *, degraded: Sequence[str] = ()) -> Plan:
    """Return a plan with the cheapest start (services.retriever.choice)."""
    question, rules, request = options.question, options.rules, options.question.request
    candidates, every = options.candidates, options.every
    notes = [note for one in every for note in one.notes]
    base = replace(
        from_noise(question, rules, _why_noise(options), start=options.noise),
        degraded=tuple(dict.fromkeys((*degraded, *notes))),
        candidates=tuple(candidates),
        looked_up=options.searched,
        found=options.similar,
        sampled=question.sampled,
        relation=_closest(rules, candidates),
    )
    drawn = hash_uniform(request, "tie") if rules.variety is not None and rules.variety.draws else None
    best = choose(every, options.noise, drawn)
    if best is None:
        return replace(base, candidates=judged(every, options.noise, question.model))
    if hash_uniform(request, "epsilon") < rules.epsilon:
        first = best.starts[0]
        reason = (
            f"Generated from noise although it could start after {first.step} of {first.steps} steps: "
            f"epsilon = {rules.epsilon:g} of hits are generated anew, so that images stay diverse."
        )
        return replace(base, reason=reason, sampled=True)
    plan = start_plan(options, base, best)
    bare = replace(base, candidates=(), degraded=(), looked_up=False, found=None)
    image = None if request.names_a_model else choose(options.images, drawn=drawn)
    # a pair that loses a blob can still start from a whole prompt's latent
    other = image or (choose(options.latents, options.noise, drawn) if best in options.pairs else None)
    if other is not None and other is not best:
        plan = replace(plan, fallback=start_plan(options, bare, other))
    return replace(plan, candidates=judged(every, best, question.model))


def _saved(noise: float, cost: float) -> int:
    return max(0, math.ceil(noise - cost)) if math.isfinite(cost) else 0


def _ruled(rules: Rules, one: Option, rerolls: bool) -> Option:
    """Return the option without its starts, and with the reason, where the rules of variety refuse them."""
    if rules.variety is None or one.entry is None or not one.starts:
        return one
    why = next((why for entry in one.entries if (why := rules.variety.refuses(one.candidate, entry, rerolls))), "")
    refused = replace(one.candidate, allowed_step=0, start_step=0, reason=why)
    return replace(one, candidate=refused, starts=()) if why else one


def start_plan(options: Options, base: Plan, best: Option) -> Plan:
    """Return the plan that takes this option. base: the plan from noise that its other fields come from."""
    question, rules, request = options.question, options.rules, options.question.request
    first, state, entry = best.starts[0], best.starts[0].state, best.entry
    assert state is not None
    assert entry is not None
    # the bound holds for every start, but one that costs more than noise saves nothing
    runs = [one for one in best.starts if one.cost < options.noise.cost] or [first]
    own_latents = first.model == question.model and len(runs) == 1
    # latents of a model that was not asked for would not match later requests like this one
    kept = capture_steps(rules.capture_steps, first.steps, first.step, insert_on_hit=rules.insert_on_hit)
    hashes = {one.model: one.weights_hash for one in rules.refiners}
    kind = PlanSource.STITCHED if best.second is not None else PlanSource.LATENT
    plan = replace(
        base,
        source=PlanSource.IMAGE if best.is_image else kind,
        model=first.model,
        start_step=first.step,
        sources=sources_of(best),
        similarity=best.candidate.similarity,
        capture_steps=kept if own_latents and request.cache.writes else (),
        may_run=tuple(one.model_plan(question.asked) for one in runs),
        fresh_noise=first.fresh_noise,
        noise_seed=fresh_seed(request.seed, " ".join(one.id for one in best.entries)),
        weights_hash=hashes.get(first.model, "") if best.is_image else base.weights_hash,
        miss_model=question.model,
        miss_steps=options.noise.steps if question.choices else 0,
        miss_prompted_from=options.noise.prompted_from,
        relation=best.candidate.relation,
        root=entry.root_id,
        background_root=background_root(best),
        reason=_why_started(options, best, runs),
    )
    return with_region(plan, rules, best, request.steps)


def _varied(rules: Rules, candidates: Sequence[Candidate] = ()) -> bool:
    return rules.variety is not None and rules.variety.matters(candidates)


def _closest(rules: Rules, candidates: Sequence[Candidate] = ()) -> str:
    return "" if rules.variety is None else rules.variety.closest(candidates).value


def _why_started(options: Options, best: Option, runs: Sequence[Start]) -> str:
    one, asked = best.candidate, options.question.request.steps
    first, *rest = runs
    if best.is_image:
        others = "".join(f", {other.model} after {other.said(asked)}" for other in rest)
        return (
            f"Starts after {first.step} of {first.steps} steps with {first.model}{others} "
            f"from an image by {one.model} that has similarity {one.similarity:.3f} to the prompt."
        )
    is_hole = one.start_step < one.allowed_step
    hole = f" ({one.allowed_step} are allowed, but that state is not cached)" if is_hole else ""
    source = options.rules.bound.source(Near(one.kind, one.similarity, run_by=first.model))
    if best.second is not None:
        return f"Starts after {first.step} of {first.steps} steps{hole} from {said_pair(one)}.{source and f' {source}'}"
    return (
        f"Starts after {first.step} of {first.steps} steps{hole} from an image whose prompt has similarity "
        f"{one.similarity:.3f}.{source and f' {source}'}"
    )


def _why_noise(options: Options) -> str:
    """Return why the request is generated from noise, where no start is chosen."""
    latents, candidates = [one.candidate for one in options.latents], options.candidates
    if not candidates:
        why = options.rules.no_latents or "the cache has nothing that fits this model, size and caller"
        return f"Generated from noise: {why}."
    allowed = [one for one in options.latents if one.candidate.allowed_step]
    dear = allowed and not any(one.least < options.noise.cost for one in allowed)
    if dear or any(one.starts for one in (*options.latents, *options.images)):
        return f"Generated from noise: no allowed start costs less than {options.noise.steps} steps from noise."
    refused = [one for one in candidates if one.reason.startswith(REFUSED)]
    if refused:  # each of them could have started the image
        nearest = max(refused, key=lambda one: one.similarity)
        return f"Generated from noise: the most similar usable entry is {nearest.reason}."
    if not latents:
        nearest = max(candidates, key=lambda one: one.similarity)
        kind = "pair of object and background" if nearest.kind == PAIR else "cached image"
        return f"Generated from noise; the nearest {kind}: {nearest.reason}."
    nearest = max(latents, key=lambda one: one.similarity)
    if allowed:
        return (
            f"Generated from noise: similar prompts are cached ({nearest.similarity:.3f}), but without a usable state."
        )
    return f"Generated from noise: the nearest cached prompt is {nearest.reason}."
