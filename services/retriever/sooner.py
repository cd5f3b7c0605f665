"""Runs that may replace an ordinary plan which is predicted late, in order of preference (PatchedServe §6).

The ordinary plan is the cheapest start of the bound. Another one may still finish sooner: by a model whose lane is
shorter, from an entry that only a wider search finds, or with a larger `savings` than the request's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from services.retriever.planning import Options, from_noise, start_plan
from services.retriever.question import Refiner
from services.retriever.starts import Option, Start, own_steps, starts_noise
from shared.domain.plan_rules import noise_plan
from shared.domain.types import Plan, PlanSource

MEASURED_SAVINGS = 0.5
"""`savings` of the measured bound; a smaller value allows a smaller loss."""


@dataclass(frozen=True, slots=True)
class Run:
    """One start with what its plan needs."""

    options: Options
    start: Start
    option: Option | None = None
    """The candidate that the run starts from; None: from noise."""
    refiner: Refiner | None = None
    """The other model of a run from noise; None: the model asked for."""

    @property
    def key(self) -> tuple[object, ...]:
        """What tells two runs apart, whatever bound allowed them."""
        ids = () if self.option is None else tuple(one.id for one in self.option.entries)
        return ids, self.source, self.start.model, self.start.steps, self.start.step

    @property
    def left(self) -> int:
        """Steps that run."""
        return self.start.steps - self.start.step

    @property
    def source(self) -> PlanSource:
        if self.option is None:
            return PlanSource.NOISE
        return PlanSource.IMAGE if self.option.is_image else PlanSource.LATENT

    def said(self) -> str:
        """Format model, start step and T."""
        return f"{self.start.model} after step {self.start.step} of {self.start.steps}"


def runs_in_order(own: Options, wide: Options | None = None) -> list[Run]:
    """Return every run, the preferred one first.

    own: starts within the request's own bound. They keep the same quality, so the cheapest comes first, as in ordinary
    plans. wide: starts with a larger `savings`; None: the request's own is as large. Those that the own bound refuses
    follow, the one that computes most first: it gives up least.
    """
    within = sorted(_runs(own), key=lambda run: run.start.cost)
    if wide is None:
        return within
    known = {run.key for run in within}
    beyond = sorted((run for run in _runs(wide) if run.key not in known), key=lambda run: -run.start.cost)
    return [*within, *beyond]


def plan_for(run: Run, ordinary: Plan) -> Plan:
    """Return the plan of this run. ordinary: the plan that it replaces, whose lookup it keeps."""
    options, start = run.options, run.start
    question, rules, request = options.question, options.rules, options.question.request
    candidates = options.candidates
    if run.option is not None:
        candidate = replace(
            run.option.candidate,
            start_step=start.step,
            steps=own_steps(start.steps, question.asked),
            chosen=True,
            reason=f"starts after step {start.said(question.asked)}, to meet the deadline",
        )
        chosen = replace(run.option, starts=(start,), candidate=replace(candidate, allowed_step=start.step))
        plan = start_plan(options, from_noise(question, rules, "", start=options.noise), chosen)
        candidates = [candidate if one is run.option.candidate else one for one in candidates]
    elif (other := run.refiner) is not None:
        reason = f"Generated from noise by {start.model}, which was measured to keep the quality of {question.model}."
        plan = noise_plan(request, start.model, other.weights_hash, (), reason)
        plan = replace(plan, may_run=(start.model_plan(question.asked),), miss_model=start.model)
    else:
        plan = from_noise(question, rules, "", start=start)
        plan = replace(plan, reason=f"Generated from noise in {start.steps} steps.")
    return replace(
        plan,
        candidates=tuple(candidates) or ordinary.candidates,
        degraded=ordinary.degraded,
        predicted_hit=ordinary.predicted_hit,
        looked_up=ordinary.looked_up,
        found=ordinary.found,
        sampled=ordinary.sampled,
    )


def _runs(options: Options) -> Iterator[Run]:
    for option in options.every:
        for start in option.starts:
            yield Run(options, start, option)
    for start in starts_noise(options.question, options.rules, options.varied):
        yield Run(options, start)
    for refiner in options.rules.refiners:
        for start in _noise_by(refiner, options):
            yield Run(options, start, refiner=refiner)


def _noise_by(refiner: Refiner, options: Options) -> Sequence[Start]:
    """Return the runs from noise by another model than the one asked for, never of fewer steps than the request
    names, and only where `savings` allows the whole loss of the measured bound. A model without an unconditional pass
    (guidance ≤ 1) would drop a negative prompt, so it takes none."""
    question, request = options.question, options.question.request
    if refiner.model == question.model or request.names_a_model or refiner.noise is None:
        return ()
    if request.savings < MEASURED_SAVINGS:
        return ()
    if request.negative_prompt and (request.guidance if refiner.guidance is None else refiner.guidance) <= 1:
        return ()
    least = 0 if question.choices else request.steps
    prompted_from = refiner.prompted_from if question.choices else None
    return [
        Start(
            refiner.model,
            steps,
            cost=steps * refiner.pace.step,
            guidance=refiner.guidance,
            prompted_from=prompted_from(steps) if prompted_from else 0,
        )
        for steps in sorted(refiner.noise(options.varied))
        if steps in refiner.steps and steps >= least
    ]
