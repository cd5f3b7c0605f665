"""Pairs: starts that are stitched from the object of one entry and the background of another (FlexCache §3.2, §4.2).

A pair's similarity is the lower one of object and background, because a hit needs both (§4.2.1). Pairs come from the
nearest entries of both indices together, which must share a step K at which both have a state. Hits store only the
states after their start (§4.2.4), so where a part was often reused, the nearest entries may all lack the state that
the bound allows. They give their place to entries that have it (docs/adr/0017-pairs.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from services.retriever.bounds import PAIR, Near
from services.retriever.question import Question, Rules, StepIn
from services.retriever.selection import largest_present
from services.retriever.starts import Found, NearEntry, Option, Start, nearest_entries, own_steps
from services.retriever.variety import closer
from shared.domain.types import Candidate, Entry, Source, State

SIDE = 16
"""Nearest usable entries of each index that are combined."""
SHOWN = 4
"""Pairs that a plan keeps, to explain its choice."""


class _Pair(NamedTuple):
    """One entry for the object and one for the background."""

    object: NearEntry
    background: NearEntry

    @property
    def similarity(self) -> float:
        return min(self.object.hit.similarity, self.background.hit.similarity)

    @property
    def near(self) -> Near:
        """The pair as a bound sees it: the closer relation counts."""
        one, other = self.object.near, self.background.near
        return one._replace(
            similarity=self.similarity,
            relation=closer(one.relation, other.relation),
            may_copy=one.may_copy or other.may_copy,
        )

    def candidate(self, reason: str, allowed: int = 0, start: int = 0, steps: int = 0) -> Candidate:
        one, other = self.object.candidate(reason, allowed, start, steps), self.background.candidate("")
        return replace(
            one,
            similarity=self.similarity,
            relation=self.near.relation if one.model and other.model else "",
            background_id=other.entry_id,
            background_prompt=other.prompt,
            object_similarity=self.object.hit.similarity,
            background_similarity=self.background.hit.similarity,
        )


def starts_pairs(question: Question, rules: Rules, found: Found) -> list[Option]:
    """Return the pairs with their cheapest start, best first; where none can be used, the most similar one with the
    reason. An entry that gives both is a whole start, and no pair."""
    if not found.objects or not found.backgrounds:
        return []
    sides = [nearest_entries(question, rules, PAIR, hits, found) for hits in (found.objects, found.backgrounds)]
    step_in = cache(rules.step_in)
    objects, backgrounds = (_able(question, rules, side, step_in)[:SIDE] for side in sides)
    pairs = _combined(objects, backgrounds)
    if not pairs:
        return _explained(*sides)
    allowed = {steps: rules.bound.latest([one.near for one in pairs], steps) for steps in question.steps}
    options = [
        _option(question, rules, pair, {steps: ks[i] for steps, ks in allowed.items() if ks[i]}, step_in)
        for i, pair in enumerate(pairs)
    ]
    return best_first(options)


def best_first(options: Sequence[Option]) -> list[Option]:
    """Return usable pairs before others: the cheapest, then the most similar first."""
    return sorted(options, key=lambda one: (one.starts[0].cost if one.starts else math.inf, -one.candidate.similarity))


def sources_of(option: Option) -> tuple[Source, ...]:
    """Return the states that an option's first start takes, with the masks of a pair; the object's state is first."""
    first = option.starts[0]
    return tuple(
        Source(entry.id, state.key, state.sha256, state.codec, *_mask(entry, option))
        for entry, state in zip(option.entries, (first.state, first.second), strict=False)
        if state is not None
    )


def background_root(option: Option) -> str:
    """Return the root of the start's background, where it is not that of its object."""
    last = option.entries[-1]
    root = last.background_root or (last.root_id if option.second is not None else "")
    return "" if root == option.entries[0].root_id else root


def said_pair(one: Candidate) -> str:
    """Return a pair in words, for the reason of a plan: without the entries' prompts, which the candidates have."""
    return (
        f"the object of one clip (similarity {one.object_similarity:.3f}) over the background of another "
        f"({one.background_similarity:.3f})"
    )


def _mask(entry: Entry, option: Option) -> tuple[str, str]:
    return (entry.mask.key, entry.mask.sha256) if option.second is not None and entry.mask is not None else ("", "")


def _able(question: Question, rules: Rules, side: Sequence[NearEntry], step_in: StepIn) -> list[NearEntry]:
    """Return the usable entries that have a state at or before the K that their own part allows; all usable ones where
    none has. A pair's K is not above that of either part."""
    usable = [one for one in side if not one.refused]
    latest = {steps: rules.bound.latest([one.near for one in usable], steps) for steps in question.steps}

    def starts(at: int, entry: Entry | None) -> bool:
        return entry is not None and any(
            largest_present(_states(entry, steps, step_in).keys(), ks[at]) for steps, ks in latest.items() if ks[at]
        )

    return [one for at, one in enumerate(usable) if starts(at, one.entry)] or usable


def _combined(objects: Sequence[NearEntry], backgrounds: Sequence[NearEntry]) -> list[_Pair]:
    return [_Pair(one, other) for one in objects for other in backgrounds if one.hit.entry_id != other.hit.entry_id]


def _explained(objects: Sequence[NearEntry], backgrounds: Sequence[NearEntry]) -> list[Option]:
    """Return the most similar pair that cannot be used, with the reason."""
    pairs = _combined(objects, backgrounds)
    if not pairs:
        return []
    best = max(pairs, key=lambda one: one.similarity)
    why = f"object: {best.object.refused}" if best.object.refused else f"background: {best.background.refused}"
    return [Option(best.candidate(why))]


def _option(question: Question, rules: Rules, pair: _Pair, allowed: dict[int, int], step_in: StepIn) -> Option:
    """Weigh one pair. allowed: T → K by the bound."""
    entry, second, asked = pair.object.entry, pair.background.entry, question.asked
    assert entry is not None
    assert second is not None
    if not allowed:
        return Option(
            pair.candidate(rules.bound.why_not([pair.near], question.request.steps)), (), entry, second=second
        )
    starts = []
    for steps, k in allowed.items():
        ours, theirs = _states(entry, steps, step_in), _states(second, steps, step_in)
        if start := largest_present(ours.keys() & theirs.keys(), k):
            fresh = question.request.fresh_noise
            starts.append(
                Start(question.model, steps, start, float(steps - start), ours[start], fresh, second=theirs[start])
            )
    steps, k = min(allowed.items(), key=lambda one: (one[0] - one[1], one[0]))
    if not starts:
        wished = Start(question.model, steps, k).said(asked)
        reason = f"step {wished} is allowed, but both have no state at one step at or before it"
        return Option(pair.candidate(reason, k, 0, own_steps(steps, asked)), (), entry, second=second)
    first = min(starts, key=lambda one: (one.cost, one.steps))
    k = allowed[first.steps]
    hole = f"; no states of both at {k}" if first.step < k else ""
    reason = (
        f"could start after step {first.said(asked)}{hole}: object {pair.object.hit.similarity:.3f}, "
        f"background {pair.background.hit.similarity:.3f}"
    )
    return Option(pair.candidate(reason, k, first.step, own_steps(first.steps, asked)), (first,), entry, second=second)


def _states(entry: Entry, steps: int, step_in: StepIn) -> dict[int, State]:
    """Return the entry's latents by the step of a run of `steps` that has exactly their noise level."""
    at = {step_in(state.step, entry.compat.steps, steps): state for state in entry.latents}
    return {step: state for step, state in at.items() if step}
