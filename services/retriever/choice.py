"""Choice of the start: the cheapest of all that the bound allows, and the reason for every other candidate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from services.retriever.bounds import IMAGE, LATENT, PAIR
from services.retriever.starts import Option, Start
from shared.domain.types import Candidate

SIMILAR = 0.01
"""Difference of two cosines below which a candidate counts as similar as another one."""


def choose(options: Iterable[Option], noise: Start | None = None, drawn: float | None = None) -> Option | None:
    """Return the option with the cheapest start; None where the run from noise costs no more.

    Among equal costs a latent comes before a pair, which shows seams: FlexCache §4.2.1 takes a pair only where its
    similarity is higher. Both come before an image, since they continue the run that stored them. Then the run with the
    fewest steps, the latest start, the most similar and the youngest entry come first.

    noise: the cheapest run from noise; None: noise is no choice. drawn: a number in [0, 1) that chooses among equals,
    whose similarities differ by less than SIMILAR.
    """
    able = [one for one in options if one.starts and (noise is None or one.starts[0].cost < noise.cost)]
    if not able:
        return None
    least = min(_rank(one) for one in able)
    able = [one for one in able if _rank(one) == least]
    first = max(able, key=lambda one: (one.starts[0].step, one.candidate.similarity, one.candidate.entry_id))
    if drawn is None:
        return first
    near = first.starts[0].step, first.candidate.similarity - SIMILAR
    equals = [one for one in able if (one.starts[0].step, one.candidate.similarity) > near]
    return sorted(equals, key=lambda one: one.candidate.entry_id)[int(drawn * len(equals))]


def _rank(one: Option) -> tuple[float, int, int]:
    """Sort key; the least wins."""
    return round(one.starts[0].cost, 9), (LATENT, PAIR, IMAGE).index(one.candidate.kind), one.starts[0].steps


def judged(options: Sequence[Option], best: Option | Start, model: str) -> tuple[Candidate, ...]:
    """Return every candidate with the reason why it was or was not taken. best: the chosen option, or the run from
    noise. model: the model asked for, whose steps are the unit of costs."""
    candidates = []
    for one in options:
        candidate = one.candidate
        if one is best:
            candidate = replace(candidate, chosen=True, reason=candidate.reason.replace("could start", "starts", 1))
        elif one.starts:
            candidate = replace(candidate, reason=f"{candidate.reason}; {_beaten(one, best, model)}")
        candidates.append(candidate)
    return tuple(candidates)


def _beaten(one: Option, best: Option | Start, model: str) -> str:
    """Return the reason why the best was taken instead of this option."""
    cost = one.starts[0].cost
    if isinstance(best, Start):
        return f"costs {cost:.3g} steps of {model}, noise {best.cost:.3g}"
    first = best.starts[0]
    if cost <= first.cost:
        same = one.candidate.kind == best.candidate.kind
        if one.starts[0].steps != first.steps:
            return "costs as much as the chosen one"
        if same and one.candidate.similarity > best.candidate.similarity:
            return "about as similar as the chosen one, which the seed drew"
        return "less similar than the chosen one" if same else f"costs as much as the chosen {best.candidate.kind}"
    if one.is_image or best.is_image or one.starts[0].steps != first.steps:
        return f"costs {cost:.3g} steps of {model}, the chosen one {first.cost:.3g}"
    return "saves fewer steps than the chosen one"
