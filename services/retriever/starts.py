"""Starts: every way to run one request that the bound allows, from noise, latents and images (docs/adr/0013-starts.md).

NIRVANA §5.3.1 for latents, MoDM §5.1 and §5.2 for images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from services.retriever.bounds import IMAGE, LATENT, PAIR, Near
from services.retriever.cost import cost_of
from services.retriever.question import Question, Refiner, Rules, StepIn
from services.retriever.selection import largest_present
from shared.domain.identity import same_caller
from shared.domain.types import Candidate, Entry, Hit, ModelPlan, State, owner_key, visible_owners


@dataclass(frozen=True, slots=True)
class Start:
    """One way to run a request: `model` starts after `step` of `steps`."""

    model: str
    steps: int
    """T."""
    step: int = 0
    """K."""
    cost: float = 0.0
    """In steps of the model asked for (services.retriever.cost)."""
    state: State | None = None
    """None: from noise."""
    fresh_noise: float = 0.0
    """Share of the state's noise that new noise replaces (NIRVANA §9)."""
    guidance: float | None = None
    """None: the request's own."""
    prompted_from: int = 0
    """Steps of T before which the run does not see its prompt."""
    second: State | None = None
    """Of a pair: the state that gives the background, at the same noise level; `state` gives the object."""

    def model_plan(self, asked: int) -> ModelPlan:
        """Return the start as a plan names it. asked: T of a run for which the plan states none."""
        steps = None if self.steps == asked else self.steps
        return ModelPlan(self.model, self.step, self.guidance, steps, self.prompted_from)

    def said(self, asked: int) -> str:
        """Format the start step, with T where T is not the request's."""
        return f"{self.step}" if self.steps == asked else f"{self.step} of {self.steps}"


@dataclass(frozen=True, slots=True)
class Option:
    """One candidate of a search, and the starts that it allows."""

    candidate: Candidate
    starts: tuple[Start, ...] = ()
    """Cheapest first. A latent has one, an image one for each model that may run it. With `Rules.every_start` those at
    smaller K follow."""
    entry: Entry | None = None
    """None: the entry is gone."""
    least: float = math.inf
    """Cost of the cheapest start that the bound allows to such a latent, even without a usable state."""
    notes: tuple[str, ...] = ()
    """Notes for the plan about measurements under other conditions."""
    second: Entry | None = None
    """Of a pair: the entry that gives the background."""

    @property
    def is_image(self) -> bool:
        return self.candidate.kind == IMAGE

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries that the start takes: none, one, or two of a pair."""
        return tuple(one for one in (self.entry, self.second) if one is not None)


@dataclass(frozen=True, slots=True)
class Found:
    """Results of the searches; None: that search was not made, or failed."""

    latents: Sequence[Hit] | None
    pictures: Sequence[Hit] | None = None
    entries: Mapping[str, Entry] = field(default_factory=dict)
    objects: Sequence[Hit] | None = None
    backgrounds: Sequence[Hit] | None = None


def starts_noise(question: Question, rules: Rules, varied: bool = False) -> list[Start]:
    """Return the runs from noise that keep the quality, cheapest first; that of the request's own T always does.

    varied: the image must differ from other images of its prompt, so variety is bounded too.
    """
    own, unprompted = question.request.steps, rules.prompted_from if question.choices else None
    able = [steps for steps in question.steps if steps == own or rules.bound.noise(steps, varied)]
    return [
        Start(question.model, steps, cost=float(steps), prompted_from=unprompted(steps) if unprompted else 0)
        for steps in sorted(able or [own])
    ]


def starts_latents(question: Question, rules: Rules, found: Found) -> list[Option]:
    """Return the nearest latents with their cheapest start: K by the bound, present states, scope and model."""
    near = nearest_entries(question, rules, LATENT, found.latents or (), found)
    allowed = _allowed(rules, near, question.model, question.steps)
    step_in = cache(rules.step_in)  # most entries hold states of the same few steps
    return [_latent(question, rules, one, allowed[i], step_in) for i, one in enumerate(near)]


def starts_images(question: Question, rules: Rules, found: Found) -> list[Option]:
    """Return the nearest images with the cheapest start of each model that may continue from them.

    An image can be brought to every noise level, so there are no holes. Its size may differ from the request's. The
    search already filtered by encoder.
    """
    near = nearest_entries(question, rules, IMAGE, found.pictures or (), found)
    allowed = {one.model: _allowed(rules, near, one.model, one.steps) for one in rules.refiners}
    return [
        _image(question, rules, one, {model: of_model[i] for model, of_model in allowed.items()})
        for i, one in enumerate(near)
    ]


class NearEntry(NamedTuple):
    """One hit of a search with its entry."""

    hit: Hit
    entry: Entry | None
    near: Near
    refused: str
    """Why the entry's states of this kind may not be used at all; empty when they may."""
    hidden: bool
    """The caller may not start from the entry: the plan shows neither its model nor its relation."""
    own: bool
    """The caller's own entry: the plan shows its prompt."""

    def candidate(self, reason: str, allowed: int = 0, start: int = 0, steps: int = 0) -> Candidate:
        hit, near = self.hit, self.near
        shown = None if self.hidden else self.entry
        return Candidate(
            hit.entry_id,
            near.kind,
            hit.similarity,
            allowed,
            start,
            reason=reason,
            prompt=shown.prompt if shown and self.own else "",
            model=shown.model if shown else "",
            steps=steps,
            relation=near.relation if shown else "",
        )


def nearest_entries(
    question: Question, rules: Rules, kind: str, hits: Sequence[Hit], results: Found
) -> list[NearEntry]:
    """Return the hits of one kind with their entries, relations (of whole prompts), and the reasons why an entry may
    not be used."""
    entries, whole = results.entries, {hit.entry_id: hit.similarity for hit in results.latents or ()}
    request, variety, compat = question.request, rules.variety, str(question.compat)
    owners, found = frozenset(visible_owners(request.tenant, request.user)), []
    for hit in hits:
        entry = entries.get(hit.entry_id)
        near = Near(kind, hit.similarity, prompt_after=request.prompt, run_by=question.model)
        hidden, own, refused = True, False, "no longer in the cache"
        if entry is not None:
            own = same_caller(request.tenant, request.user, entry.tenant, entry.user)
            hidden = owner_key(entry.scope, entry.tenant, entry.user) not in owners
            refused = "not visible to this caller" if hidden else _unfit(question, compat, entry, kind)
            similarity = -1.0 if kind == IMAGE else whole.get(entry.id, -1.0)
            relation = variety.relation_to(entry, similarity) if variety else ""
            near = near._replace(
                relation=relation,
                may_copy=variety is None or variety.may_copy(relation),
                prompt_before=entry.prompt,
                made_by=(entry.model, entry.compat.weights_hash),
            )
        found.append(NearEntry(hit, entry, near, refused, hidden, own))
    return found


def _unfit(question: Question, compat: str, entry: Entry, kind: str) -> str:
    """Return why a visible entry's states of this kind do not fit the request; empty when they do."""
    if kind == IMAGE:
        if entry.compat.frames != question.compat.frames:
            return "its clip has another number of frames"
        if entry.compat.steered != question.compat.steered:
            return "generated with another negative prompt or guidance"
        return "" if entry.picture is not None else "its picture is no longer in the cache"
    if entry.compat != question.compat and str(entry.compat) != compat:  # the string leaves out T
        return "generated with other weights, sampler, dtype, size, negative prompt or guidance"
    if entry.encoder_hash != question.encoder_hash:
        return "embedded by another encoder"
    return "its masks are not in the cache (yet)" if kind == PAIR and entry.mask is None else ""


def _allowed(rules: Rules, found: Sequence[NearEntry], model: str, choices: Sequence[int]) -> list[dict[int, int]]:
    """Return for each hit: T → the largest K that the bound allows to a run by this model, where it allows any."""
    near = [one.near._replace(run_by=model) for one in found]
    by_steps = {steps: rules.bound.latest(near, steps) for steps in choices} if near else {}
    return [{steps: ks[i] for steps, ks in by_steps.items() if ks[i]} for i in range(len(near))]


def _latent(question: Question, rules: Rules, found: NearEntry, allowed: Mapping[int, int], step_in: StepIn) -> Option:
    """Weigh the latents of one entry. allowed: T → K by the bound."""
    entry, asked = found.entry, question.asked
    least = min((float(steps - k) for steps, k in allowed.items()), default=math.inf)
    if entry is None or found.refused:
        return Option(found.candidate(found.refused), (), entry, least)
    if not allowed:
        return Option(found.candidate(rules.bound.why_not([found.near], question.request.steps)), (), entry)
    starts = []
    for steps, k in allowed.items():
        at = {step_in(state.step, entry.compat.steps, steps): state for state in entry.latents}
        latest = largest_present(at, k)
        fresh = question.request.fresh_noise
        for start in sorted(step for step in at if 0 < step <= k) if rules.every_start else (latest,) if latest else ():
            starts.append(Start(question.model, steps, start, float(steps - start), at[start], fresh))
    steps, k = min(allowed.items(), key=lambda pair: (pair[0] - pair[1], pair[0]))
    if not starts:
        wished = Start(question.model, steps, k).said(asked)
        reason = f"step {wished} is allowed, but no state at or before it is cached"
        return Option(found.candidate(reason, k, 0, own_steps(steps, asked)), (), entry, least)
    first, *others = sorted(starts, key=lambda one: (one.cost, one.steps))
    k = allowed[first.steps]
    hole = f"; the state at {k} is not cached" if first.step < k else ""
    reason = f"could start after step {first.said(asked)}{hole}"
    kept = (first, *others) if rules.every_start else (first,)
    return Option(found.candidate(reason, k, first.step, own_steps(first.steps, asked)), kept, entry, least)


def _image(question: Question, rules: Rules, found: NearEntry, allowed: Mapping[str, Mapping[int, int]]) -> Option:
    """Weigh the image of one entry. allowed: model → T → K by the bound."""
    entry, asked = found.entry, question.asked
    if entry is None or found.refused:
        return Option(found.candidate(found.refused), (), entry)
    near = [found.near._replace(run_by=one.model) for one in rules.refiners]
    notes = tuple(note for one in near if (note := rules.bound.note(one)))
    ranked = [
        ((start.cost, not one.small, one.model), start)
        for one in rules.refiners
        if (start := _refined(one, entry, allowed[one.model])) is not None
    ]
    starts = tuple(start for _, start in sorted(ranked, key=lambda pair: pair[0]))
    if not starts:
        reason = rules.bound.why_not(near, question.request.steps) if near else "no served model continues from images"
        return Option(found.candidate(reason), (), entry, notes=notes)
    first, *others = starts
    who = "".join(f", {one.model} after step {one.said(asked)}" for one in others)
    size = entry.compat.size
    resized = "" if size == question.request.size else f", resized from {size}"
    reason = f"{first.model} could start after step {first.said(asked)}{who}{resized}"
    if rules.every_start:
        smaller = (start for one in rules.refiners for start in _image_starts(one, entry, allowed[one.model]))
        starts += tuple(start for start in smaller if start not in starts)
    return Option(
        found.candidate(reason, first.step, first.step, own_steps(first.steps, asked)), starts, entry, notes=notes
    )


def _refined(one: Refiner, entry: Entry, allowed: Mapping[int, int]) -> Start | None:
    """Return the cheapest start of this model from the entry's image. allowed: T → K by the bound."""
    starts = (_image_start(one, entry, steps, k) for steps, k in allowed.items())
    return min(starts, key=lambda start: (start.cost, start.steps), default=None)


def _image_starts(one: Refiner, entry: Entry, allowed: Mapping[int, int]) -> list[Start]:
    """Return every start of this model from the entry's image, up to the allowed K."""
    return [_image_start(one, entry, steps, k) for steps, latest in allowed.items() for k in range(1, latest + 1)]


def _image_start(one: Refiner, entry: Entry, steps: int, k: int) -> Start:
    cost = cost_of(one.pace, steps, k, picture=True)
    return Start(one.model, steps, k, cost, entry.picture, guidance=one.guidance)


def own_steps(steps: int, asked: int) -> int:
    """Return T as a candidate states it: 0 where T is the request's."""
    return 0 if steps == asked else steps
