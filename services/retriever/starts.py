"""Starts: every way to run one request that the bound allows, from noise, latents and images (docs/adr/0013-starts.md).

NIRVANA §5.3.1 for latents, MoDM §5.1 and §5.2 for images.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from services.retriever.bounds import IMAGE, LATENT, Near
from services.retriever.cost import cost_of
from services.retriever.question import Question, Refiner, Rules
from services.retriever.selection import largest_present
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

    def model_plan(self, asked: int) -> ModelPlan:
        """Return the start as a plan names it. asked: T of a run for which the plan states none."""
        return ModelPlan(self.model, self.step, self.guidance, None if self.steps == asked else self.steps)

    def said(self, asked: int) -> str:
        """Format the start step, with T where T is not the request's."""
        return f"{self.step}" if self.steps == asked else f"{self.step} of {self.steps}"


@dataclass(frozen=True, slots=True)
class Option:
    """One candidate of a search, and the starts that it allows."""

    candidate: Candidate
    starts: tuple[Start, ...] = ()
    """Cheapest first. A latent has one, an image one for each model that may run it."""
    entry: Entry | None = None
    """None: the entry is gone."""
    least: float = math.inf
    """Cost of the cheapest start that the bound allows to such a latent, even without a usable state."""
    notes: tuple[str, ...] = ()
    """Notes for the plan about measurements under other conditions."""

    @property
    def is_image(self) -> bool:
        return self.candidate.kind == IMAGE


@dataclass(frozen=True, slots=True)
class Found:
    """Results of the searches; None: that search was not made, or failed."""

    latents: Sequence[Hit] | None
    pictures: Sequence[Hit] | None = None
    entries: Mapping[str, Entry] = field(default_factory=dict)


def starts_noise(question: Question, rules: Rules) -> list[Start]:
    """Return the runs from noise that keep the quality, cheapest first; that of the request's own T always does."""
    able = [steps for steps in question.steps if steps == question.request.steps or rules.bound.noise(steps)]
    return [Start(question.model, steps, cost=float(steps)) for steps in sorted(able or [question.request.steps])]


def starts_latents(question: Question, rules: Rules, found: Found) -> list[Option]:
    """Return the nearest latents with their cheapest start: K by the bound, present states, scope and model."""
    hits = found.latents or ()
    entries = [found.entries.get(hit.entry_id) for hit in hits]
    near = _near(question, rules, LATENT, hits, entries)
    allowed = {steps: rules.bound.latest(near, steps) for steps in question.steps} if near else {}
    rules = replace(rules, step_in=cache(rules.step_in))  # most entries hold states of the same few steps
    seen = _Visible(question)
    return [
        _latent(question, rules, seen, near[i], hit, entry, {steps: ks[i] for steps, ks in allowed.items() if ks[i]})
        for i, (hit, entry) in enumerate(zip(hits, entries, strict=True))
    ]


def starts_images(question: Question, rules: Rules, found: Found) -> list[Option]:
    """Return the nearest images with the cheapest start of each model that may continue from them.

    An image can be brought to every noise level, so there are no holes. Its size may differ from the request's. The
    search already filtered by encoder.
    """
    hits = found.pictures or ()
    entries = [found.entries.get(hit.entry_id) for hit in hits]
    images = _near(question, rules, IMAGE, hits, entries)
    near = {one.model: [image._replace(run_by=one.model) for image in images] for one in rules.refiners}
    allowed = {
        (one.model, steps): rules.bound.latest(near[one.model], steps)
        for one in (rules.refiners if hits else ())
        for steps in one.steps
    }
    seen = _Visible(question)
    return [
        _image(question, rules, seen, [near[one.model][i] for one in rules.refiners] or [images[i]], hit, entry,
               {key: ks[i] for key, ks in allowed.items() if ks[i]})
        for i, (hit, entry) in enumerate(zip(hits, entries, strict=True))
    ]  # fmt: skip


class _Visible:
    """The scope keys and the compatibility key that entries of one question must have."""

    def __init__(self, question: Question) -> None:
        self.question, request = question, question.request
        self.owners = frozenset(visible_owners(request.tenant, request.user))
        self.compat = str(question.compat)

    def shows(self, entry: Entry) -> bool:
        return owner_key(entry.scope, entry.tenant, entry.user) in self.owners

    def refused(self, entry: Entry | None, kind: str) -> str:
        """Return why the entry's states of this kind may not be used at all; empty when they may."""
        if entry is None:
            return "no longer in the cache"
        if not self.shows(entry):
            return "not visible to this caller"
        if kind == IMAGE:
            return "" if entry.picture is not None else "its picture is no longer in the cache"
        if entry.compat != self.question.compat and str(entry.compat) != self.compat:  # the string leaves out T
            return "generated with other weights, sampler, dtype or size"
        if entry.encoder_hash != self.question.encoder_hash:
            return "embedded by another encoder"
        return ""


def _near(
    question: Question, rules: Rules, kind: str, hits: Sequence[Hit], entries: Iterable[Entry | None]
) -> list[Near]:
    prompt, variety = question.request.prompt, rules.variety
    return [
        Near(kind, hit.similarity, prompt_after=prompt, run_by=question.model)
        if entry is None
        else Near(
            kind,
            hit.similarity,
            "" if variety is None else variety.relation_to(entry, hit.similarity if kind == LATENT else -1.0),
            entry.prompt,
            prompt,
            next((state.codec for state in entry.states if state.is_picture is (kind == IMAGE)), ""),
            (entry.model, entry.compat.weights_hash),
            question.model,
        )
        for hit, entry in zip(hits, entries, strict=True)
    ]


def _candidate(
    near: Near, hit: Hit, entry: Entry, reason: str, allowed: int = 0, start: int = 0, steps: int = 0
) -> Candidate:
    return Candidate(
        hit.entry_id, near.kind, hit.similarity, allowed, start, entry.prompt, reason=reason, model=entry.model,
        relation=near.relation, steps=steps,
    )  # fmt: skip


def _hidden(near: Near, hit: Hit, reason: str) -> Candidate:
    """Return a candidate that shows nothing of its entry."""
    return Candidate(hit.entry_id, near.kind, hit.similarity, 0, 0, reason=reason)


def _latent(
    question: Question,
    rules: Rules,
    visible: _Visible,
    near: Near,
    hit: Hit,
    entry: Entry | None,
    allowed: Mapping[int, int],
) -> Option:
    """Weigh the latents of one entry. allowed: T → the largest K that the bound allows, where it allows any."""
    least = min((float(steps - k) for steps, k in allowed.items()), default=math.inf)
    refused, asked = visible.refused(entry, LATENT), question.request.steps
    if entry is None or refused:
        shown = entry is not None and visible.shows(entry)
        one = _candidate(near, hit, entry, refused) if entry and shown else _hidden(near, hit, refused)
        return Option(one, (), entry, least)
    if not allowed:
        return Option(_candidate(near, hit, entry, rules.bound.why_not([near], asked)), (), entry)
    starts = []
    for steps, k in allowed.items():
        at = {rules.step_in(state.step, entry.compat.steps, steps): state for state in entry.latents}
        if start := largest_present(at, k):
            fresh = question.request.fresh_noise
            starts.append(Start(question.model, steps, start, float(steps - start), at[start], fresh))
    if not starts:
        steps, k = min(allowed.items(), key=lambda pair: (pair[0] - pair[1], pair[0]))
        reason = f"step {_of(k, steps, asked)} is allowed, but no state at or before it is cached"
        return Option(_candidate(near, hit, entry, reason, k, 0, _own(steps, asked)), (), entry, least)
    first = min(starts, key=lambda one: (one.cost, one.steps))
    k = allowed[first.steps]
    hole = f"; the state at {k} is not cached" if first.step < k else ""
    reason = f"could start after step {first.said(asked)}{hole}"
    return Option(_candidate(near, hit, entry, reason, k, first.step, _own(first.steps, asked)), (first,), entry, least)


def _image(
    question: Question,
    rules: Rules,
    visible: _Visible,
    near: Sequence[Near],
    hit: Hit,
    entry: Entry | None,
    allowed: Mapping[tuple[str, int], int],
) -> Option:
    """Weigh the image of one entry. allowed: (model, T) → the largest K that the bound allows, where it allows any."""
    refused, asked = visible.refused(entry, IMAGE), question.request.steps
    of = near[0]
    if entry is None or not visible.shows(entry):
        return Option(_hidden(of, hit, refused), (), entry)
    if refused:
        return Option(_candidate(of, hit, entry, refused), (), entry)
    notes = tuple(note for one in near if (note := rules.bound.note(one)))
    starts = [start for one in rules.refiners if (start := _refined(one, entry, allowed)) is not None]
    small = {one.model: one.small for one in rules.refiners}
    starts.sort(key=lambda one: (one.cost, not small[one.model], one.model))
    if not starts:
        reason = rules.bound.why_not(near, asked) if rules.refiners else "no served model continues from images"
        return Option(_candidate(of, hit, entry, reason), (), entry, notes=notes)
    first, *others = starts
    who = "".join(f", {one.model} after step {one.said(asked)}" for one in others)
    size = entry.compat.size
    resized = "" if size == question.request.size else f", resized from {size}"
    reason = f"{first.model} could start after step {first.said(asked)}{who}{resized}"
    one = _candidate(of, hit, entry, reason, first.step, first.step, _own(first.steps, asked))
    return Option(one, tuple(starts), entry, notes=notes)


def _refined(one: Refiner, entry: Entry, allowed: Mapping[tuple[str, int], int]) -> Start | None:
    """Return the cheapest start of this model from the entry's image."""
    starts = [
        Start(one.model, steps, k, cost_of(one.pace, steps, k, picture=True), entry.picture, guidance=one.guidance)
        for steps in one.steps
        if (k := allowed.get((one.model, steps), 0))
    ]
    return min(starts, key=lambda start: (start.cost, start.steps), default=None)


def _own(steps: int, asked: int) -> int:
    """Return T as a candidate states it: 0 where T is the request's."""
    return 0 if steps == asked else steps


def _of(step: int, steps: int, asked: int) -> str:
    return f"{step}" if steps == asked else f"{step} of {steps}"
