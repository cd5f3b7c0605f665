"""Rules for plans: a plan's lane, the models that may run it, and changes to a plan that cannot run as it was made.

Sources: MoDM §4.2, NIRVANA §5.4.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from shared.domain.ids import ids_in
from shared.domain.messages import lane_of, refine_lane
from shared.domain.types import Entry, Modality, ModelPlan, Plan, PlanSource, Request, Source
from shared.models.card import ModelCard

DRAWN = "; generated from noise"
"""End of a note in `Plan.degraded` that gives the reason why a plan lost its start."""
ANOTHER = "of another caller"
"""Stands for the id of another caller's entry in what a caller reads."""
ERASED = "that was erased"
"""Stands for the id of an erased entry."""

# ---- new plans ----


def noise_plan(
    request: Request,
    model: str,
    weights_hash: str,
    kept: Iterable[int],
    reason: str,
    *,
    degraded: Sequence[str] = (),
    predicted_hit: bool | None = None,
    steps: int | None = None,
    prompted_from: int = 0,
    step_reuse: str = "",
) -> Plan:
    """Return a plan that runs all T steps of `model` from noise. kept: `settings.capture_steps`, K of 50. steps: T;
    None: the request's. prompted_from: see ModelPlan. step_reuse: the model's ModelCard.reuse_key."""
    return Plan(
        source=PlanSource.NOISE,
        model=model,
        capture_steps=capture_steps(kept, steps or request.steps) if request.cache.writes else (),
        may_run=(ModelPlan(model, 0, steps=steps, prompted_from=prompted_from),),
        noise_seed=request.seed,
        weights_hash=weights_hash,
        reason=reason,
        degraded=tuple(degraded),
        predicted_hit=predicted_hit,
        step_reuse=step_reuse,
    )


def scale_steps(ks: Iterable[int], steps: int, of: int = 50) -> tuple[int, ...]:
    """Scale K of T = `of` to a run of `steps`, rounded down; each step once, without the start and the end."""
    return tuple(sorted({k * steps // of for k in ks} - {0, steps}))


def capture_steps(ks: Iterable[int], steps: int, start: int = 0, *, insert_on_hit: bool = True) -> tuple[int, ...]:
    """Return the steps after which the latent is kept. A hit keeps only states after its start (FlexCache §4.2.4).

    ks: of 50; steps: T of the run; start: steps that the run skips.
    """
    if start and not insert_on_hit:
        return ()
    return tuple(step for step in scale_steps(ks, steps) if step > start)


def steps_at(strength: float, steps: int) -> int:
    """Return how many of T = `steps` run from an image at this strength, as in diffusers' image-to-image pipelines."""
    return round(strength * steps)


def shown_plan(plan: Plan, subject: str) -> Plan:
    """Return the plan as its caller may see it: without the ids and blobs of other callers' entries. Their candidates
    are those without a prompt.

    subject: of the job's key; empty: anonymous. A chain of own images may have begun with another caller's. The plan
    does not name that caller, so a caller with a key sees a root only where it is an own candidate.
    """
    own, others = set[str](), set[str]()
    for one in plan.candidates:
        for entry_id, prompt in ((one.entry_id, one.prompt), (one.background_id, one.background_prompt)):
            (own if prompt else others).add(entry_id)
    if subject:
        for made in filter(None, (plan, plan.fallback)):
            others |= {made.root, made.background_root} - own
    others.discard("")
    if not others:
        return plan
    return _without(plan, own, others)


def _without(plan: Plan, own: Collection[str], others: Collection[str]) -> Plan:
    descends, made = all(one.entry_id in own for one in plan.sources), without_entries(plan, others, ANOTHER)
    return replace(
        made,
        sources=tuple(one if one.entry_id in own else Source("") for one in plan.sources),
        root=made.root if descends else "",
        background_root=made.background_root if descends else "",
        fallback=plan.fallback and _without(plan.fallback, own, others),
    )


def without_entries(plan: Plan, gone: Collection[str], said_of: str = ERASED) -> Plan:
    """Return the plan without the ids, prompts and blobs of these entries: a source of theirs becomes an empty one."""

    def said(text: str) -> str:
        for one in gone:
            text = text.replace(one, said_of)
        return text

    def kept(entry_id: str, text: str) -> str:
        return "" if entry_id in gone else text

    def own(key: str) -> bool:
        return ids_in(key).isdisjoint(gone)

    def source(one: Source) -> Source:
        """Blank the blob, too, of a repeat: its image is that of the job which it repeats."""
        return Source("") if one.entry_id in gone else one if own(one.key) else replace(one, key="", sha256="")

    lead = plan.lead
    if lead is not None and (lead.job_id in gone or not own(lead.key)):
        lead = replace(lead, job_id=kept(lead.job_id, lead.job_id), key="", sha256="")
    return replace(
        plan,
        candidates=tuple(
            replace(
                one,
                entry_id=kept(one.entry_id, one.entry_id),
                prompt=kept(one.entry_id, one.prompt),
                background_id=kept(one.background_id, one.background_id),
                background_prompt=kept(one.background_id, one.background_prompt),
                reason=said(one.reason),
            )
            for one in plan.candidates
        ),
        sources=tuple(map(source, plan.sources)),
        root=kept(plan.root, plan.root),
        background_root=kept(plan.background_root, plan.background_root),
        lead=lead,
        reason=said(plan.reason),
        degraded=tuple(map(said, plan.degraded)),
        fallback=plan.fallback and without_entries(plan.fallback, gone, said_of),
    )


# ---- lanes ----


def lane_for(request: Request, plan: Plan, served: Collection[str]) -> str:
    """Return the lane in which a plan waits.

    With several served models, an image hit that names no model waits in `refine`, and each model starts at its own k.
    All other plans, and those of clips, wait in the lane of their model.
    """
    if request.modality is Modality.VIDEO:
        return lane_of(plan.model)
    shared = plan.source is PlanSource.IMAGE and not request.names_a_model and len(served) > 1
    return refine_lane(request.modality) if shared else lane_of(plan.model)


def only_model(plan: Plan) -> str:
    """Return the one model that may run this image hit; empty for other plans, and if several models may run it."""
    return plan.may_run[0].model if plan.source is PlanSource.IMAGE and len(plan.may_run) == 1 else ""


# ---- the model that runs a plan ----


def choose_model(plan: Plan, loaded: Collection[str], preferred: Collection[str] = ()) -> Plan:
    """Return the plan as a worker with the models `loaded` runs it (MoDM §4.2).

    An image hit runs on the cheapest of the `preferred` models that may run it, or else on the cheapest loaded model,
    and starts at that model's own k. A latent hit of another model becomes its fallback. A plan that no loaded model
    may run stays unchanged.
    """
    if (fallback := _fallback(plan, loaded)) is not None:
        plan = replace(fallback, candidates=plan.candidates, parts=plan.parts)
    if plan.source is not PlanSource.IMAGE:
        return plan
    one = _first(plan, [model for model in preferred if model in loaded]) or _first(plan, loaded)
    return plan if one is None else _run_by(plan, one)


def use_fallback(plan: Plan, assigned: Collection[str] | None) -> Plan:
    """Return the plan's fallback if no worker runs the plan's model but one may run the fallback; else the plan.

    assigned: the models that some worker runs; None: unknown, so any model may have a worker.
    """
    if assigned is None or (fallback := _fallback(plan, assigned)) is None:
        return plan
    why = f"workers: no worker runs {plan.model}, whose latent this would start from"
    return replace(
        fallback,
        candidates=plan.candidates,
        parts=plan.parts,
        degraded=(*plan.degraded, why),
        reason=f"{fallback.reason} Planned from a latent: {plan.reason}",
        predicted_hit=plan.predicted_hit,
        looked_up=plan.looked_up,
        found=plan.found,
        sampled=plan.sampled,
    )


def hand_over(plan: Plan, assigned: Collection[str] | None) -> Plan:
    """Return the plan for the first model that may run it and that some worker runs.

    Without such a model an image hit becomes a miss, unless the miss would wait for a model that may run the hit.

    assigned: the models that some worker runs; None: unknown, so any model may have a worker.
    """
    if one := _first(plan, assigned) or _first(plan, (plan.miss_model or plan.model,)):
        return _run_by(plan, one)
    if plan.source is not PlanSource.IMAGE:
        return plan
    return degrade(plan, f"workers: no worker runs {', '.join(one.model for one in plan.may_run)}{DRAWN}")


def reroute_plan(request: Request, plan: Plan, assigned: Collection[str]) -> Plan | None:
    """Return the changed plan for a job that waits in a lane without workers, so that a worker may run the job.

    None: the plan stays, because no worker runs a model that may run it, and a miss would wait for the same model.
    In `refine` such a job would circle: the worker that takes it may not run it, and moves it back.
    """
    plan = use_fallback(plan, assigned)
    runs_here = plan.model in assigned and _first(plan, (plan.model,)) is not None
    if plan.source is not PlanSource.IMAGE or request.names_a_model or runs_here:
        return plan
    plan = hand_over(plan, assigned)
    return plan if plan.source is PlanSource.NOISE or plan.model in assigned else None


def _first(plan: Plan, models: Collection[str] | None) -> ModelPlan | None:
    """Return the cheapest of `models` that may run the plan; `models` None: any model may."""
    return next((one for one in plan.may_run if models is None or one.model in models), None)


def _fallback(plan: Plan, models: Collection[str]) -> Plan | None:
    """Return the plan's fallback if `models` lacks the plan's own model but has one that may run the fallback."""
    other = plan.fallback
    return other if other is not None and plan.model not in models and _first(other, models) else None


def _run_by(plan: Plan, one: ModelPlan) -> Plan:
    same = (plan.model, plan.start_step) == (one.model, one.start_step)
    return plan if same else replace(plan, model=one.model, start_step=one.start_step)


# ---- degradation ----


def revalidate(plan: Plan, weights_hash: str, step_reuse: str = "") -> Plan:
    """Return the plan for the weights and the reuse between steps that its model has now. Others make a start from
    latents a miss."""
    if (plan.weights_hash, plan.step_reuse) == (weights_hash, step_reuse):
        return plan
    if plan.source in (PlanSource.LATENT, PlanSource.STITCHED) and not plan.is_miss:
        changed = "weights" if plan.weights_hash != weights_hash else "step_reuse"
        return degrade(plan, f"{changed}: changed since the plan was made")
    return replace(plan, weights_hash=weights_hash, step_reuse=step_reuse)


def smaller_starts(plan: Plan, entry: Entry, card: ModelCard, request: Request, why: str) -> Iterator[Plan]:
    """Yield plans from the entry's states below the plan's K, largest K first, for a plan whose own state is lost."""
    if str(entry.compat) != str(card.compat_for(request, guidance=plan.run_guidance(request.guidance))):
        return
    steps = plan.run_steps(request.steps)
    at = {card.step_in(state.step, entry.compat.steps, steps): state for state in entry.states}
    for step in sorted((step for step in at if 0 < step < plan.start_step), reverse=True):
        instead = f"{why}; starts after {step} instead of {plan.start_step} steps"
        yield replace(
            plan,
            start_step=step,
            sources=(replace(plan.first_source, key=at[step].key, sha256=at[step].sha256, codec=at[step].codec),),
            degraded=(*plan.degraded, instead),
            reason=f"Saves fewer steps than planned: {instead}. Planned: {plan.reason}",
        )


def whole_start(plan: Plan, why: str) -> Plan | None:
    """Return the start from a whole prompt's latent for a pair that lost a blob; None where the plan has none."""
    whole = plan.fallback
    if whole is None or whole.source is not PlanSource.LATENT or whole.model != plan.model:
        return None
    return replace(
        plan,
        source=whole.source,
        start_step=whole.start_step,
        sources=whole.sources,
        region_until=whole.region_until,
        similarity=whole.similarity,
        capture_steps=whole.capture_steps,
        may_run=whole.may_run,
        fresh_noise=whole.fresh_noise,
        noise_seed=whole.noise_seed,
        relation=whole.relation,
        root=whole.root,
        background_root=whole.background_root,
        candidates=tuple(
            replace(one, chosen=one.kind == "latent" and one.entry_id == whole.entry_id) for one in plan.candidates
        ),
        fallback=None,
        degraded=(*plan.degraded, f"{why}; starts from one entry instead of a pair"),
        reason=f"{whole.reason} Planned from a pair: {plan.reason}",
    )


def degrade(plan: Plan, why: str) -> Plan:
    """Return the hit as a miss: from noise, by the model that the plan names for a miss, with `why` as a note.

    The worker that runs the miss sets `weights_hash` and `step_reuse`.
    """
    model, former = plan.miss_model or plan.model, plan.run_steps(0)
    captured = plan.capture_steps
    if plan.miss_steps and former:  # T was planned for each start
        captured = scale_steps(captured, plan.miss_steps, former)
    return replace(
        plan,
        source=PlanSource.NOISE,
        model=model,
        may_run=(ModelPlan(model, 0, steps=plan.miss_steps or None, prompted_from=plan.miss_prompted_from),),
        capture_steps=captured,
        fallback=None,
        start_step=0,
        sources=(),
        region_until=0,
        root="",
        background_root="",
        fresh_noise=0.0,
        weights_hash="",
        degraded=(*plan.degraded, why),
        reason=f"Generated from noise after all: {why.removesuffix(DRAWN)}. Planned: {plan.reason}",
    )
