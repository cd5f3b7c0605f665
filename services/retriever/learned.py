"""The learned bound: the kind of change between two prompts is recognised from similarity and words; what each kind of
change costs at each K was measured.

Fitted by `afterimage profile` (services/cli/profiles/learning.py), evaluated with numpy alone
(docs/models/learned-bound.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise, repeat

import numpy as np
import numpy.typing as npt

from services.retriever.bounds import IMAGE, LATENT, Bound, Maker, Near, not_similar
from services.retriever.relation import normalised
from shared.models.learned_table import MEASURES, PLAIN, Floats, LearnedTable, Levels
from shared.models.quality import BOUNDS

Words = frozenset[str]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int_]
COPYING = MEASURES.index("copying")
SURE = 3.0
"""Standard errors beyond which a measure counts as certain."""


@lru_cache(maxsize=8192)
def parts_of(prompt: str) -> tuple[Words, frozenset[tuple[str, str]]]:
    """Return a prompt's distinct words, and its distinct pairs of neighbouring words."""
    words = normalised(prompt).split()
    return frozenset(words), frozenset(pairwise(words))


def features(near: Sequence[Near], knots: Sequence[float], places: Mapping[str, int]) -> tuple[Floats, Floats]:
    """Return the features (candidates, PLAIN + knots + words), and each candidate's share of unknown words among the
    words that only one of its two prompts has.

    places: word → its number. A word counts where only one prompt has that word.
    """
    rows: list[tuple[float, ...]] = []
    columns: list[int] = []
    rows_of: list[int] = []
    place_of = places.get
    for row, one in enumerate(near):
        before, order = parts_of(one.prompt_before)
        after, other_order = parts_of(one.prompt_after)
        same = len(before & after)
        removed, added, orders = len(before) - same, len(after) - same, len(order & other_order)
        union, every = same + removed + added, len(order) + len(other_order) - orders
        alike = not removed and not added
        rows.append(
            (
                one.similarity,
                same / union if union else 1.0,
                removed,
                added,
                orders / every if every else 1.0,
                alike,
                alike and orders == every,
                len(after),
                removed * added,
            )
        )
        if not alike:
            columns += map(place_of, before ^ after, repeat(len(places)))
            rows_of += [row] * (removed + added)
    named = np.zeros((len(near), len(places) + 1))
    named[rows_of, columns] = 1.0
    plain = np.array(rows, float).reshape(len(near), PLAIN)
    unknown = (plain[:, 2] + plain[:, 3] - named[:, :-1].sum(axis=1)) / np.maximum(plain[:, 2] + plain[:, 3], 1.0)
    bent = np.maximum(plain[:, :1] - np.asarray(knots), 0.0)
    return np.hstack([plain, bent, named[:, :-1]]), unknown


def probabilities(table: LearnedTable, found: Floats) -> Floats:
    """Return the probability of each kind of change: (candidates, kinds)."""
    logits = found @ table.weights + table.bias
    values = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: Floats = values / values.sum(axis=1, keepdims=True)
    return shares


def allowances(alpha: float, savings: float = 0.5) -> Floats:
    """Return the largest allowed loss of each measure, for one α and one knob.

    Fidelity and attributes may lose 1 − α, the others what `shared.models.quality.BOUNDS` leaves. The knob scales the
    allowed loss as it scales a K table's distance to identity: halved at 0, doubled at 1 (`selection.shifted`).
    """
    own = {"fidelity": alpha, "attributes": alpha}
    limits = {name: BOUNDS[name].limit if BOUNDS[name].at_most else 1 - BOUNDS[name].limit for name in MEASURES}
    loss = [1 - own[name] if name in own else limits[name] for name in MEASURES]
    return np.array(loss) * 4 ** (savings - 0.5)


def margins(change: Floats, error: Floats, allowed: Floats, copying: bool) -> Floats:
    """Return how far the worst measure is inside its bound, −1…1: (…, levels). 1 stands for SURE standard errors.

    change, error: (…, levels, measures). copying: whether copying is bounded.
    """
    left = np.clip((change + allowed) / (SURE * np.maximum(error, 1e-6)), -1.0, 1.0)
    worst = left if copying else np.delete(left, COPYING, axis=-1)
    found: Floats = np.minimum.accumulate(worst.min(axis=-1), axis=-1)
    return found


def expected(shares: Floats, unknown: Floats, of_kinds: Floats) -> Floats:
    """Return the expected margin of each start: (candidates, levels). Unknown words count as the worst kind.

    of_kinds: (kinds, levels).
    """
    found: Floats = (1 - unknown)[:, None] * (shares @ of_kinds) + unknown[:, None] * of_kinds.min(axis=0)
    return found


def last_level(score: Floats, margin: float) -> Ints:
    """Return the number of levels up to the last one whose expected margin, and that of each level before it, is at
    least `margin`."""
    found: Ints = np.logical_and.accumulate(score >= margin, axis=1).sum(axis=1)
    return found


class LearnedBound(Bound):
    """Bounds from fitted models; the K tables decide where none was fitted."""

    def __init__(
        self,
        latents: LearnedTable | None,
        images: Mapping[tuple[str, Maker], LearnedTable] | None = None,
        *,
        tables: Bound | None = None,
        alpha: float = 0.95,
        savings: float = 0.5,
    ) -> None:
        """latents: None where no bound was fitted for them. images: by the model that would run, and the maker of the
        image. tables: decides about candidates that no fitted bound covers; None: those allow no start. savings: the
        request's knob."""
        self._latents, self._images, self._tables = latents, images or {}, tables
        self._allowed = allowances(alpha, savings)
        self._of_kinds: dict[tuple[int, int], tuple[Levels, Floats, Floats]] = {}
        self._last: tuple[LearnedTable, list[Near], tuple[Floats, Floats, Bools, Bools]] | None = None

    def latest(self, near: Sequence[Near], steps: int) -> list[int]:
        if self._latents is not None and all(one.kind == LATENT for one in near):
            return self._latest(self._latents, near, steps)
        found = [0] * len(near)
        groups: dict[int, tuple[LearnedTable | None, list[int]]] = {}
        for place, one in enumerate(near):
            table = self._of(one)
            groups.setdefault(id(table), (table, []))[1].append(place)
        for table, places in groups.values():
            own = [near[place] for place in places]
            if table is not None:
                ks: Sequence[int] = self._latest(table, own, steps)
            else:
                ks = self._tables.latest(own, steps) if self._tables else [0] * len(own)
            for place, k in zip(places, ks, strict=True):
                found[place] = k
        return found

    def noise(self, steps: int, varied: bool = False) -> bool:
        if self._latents is None:
            return self._tables.noise(steps, varied) if self._tables else False
        if steps == self._latents.steps:
            return True  # the reference itself
        levels = self._latents.levels.get(steps)
        if levels is None or levels.noise is None:
            return False
        if varied and (levels.variety is None or levels.variety < BOUNDS["variety"].limit):
            return False
        return bool((levels.noise >= -self._allowed)[:COPYING].all())

    def why_not(self, near: Sequence[Near], steps: int) -> str:
        tables = [table for one in near if (table := self._of(one)) is not None]
        if not tables:
            return self._tables.why_not(near, steps) if self._tables else "no bound was fitted for this start"
        similarity, floor = near[0].similarity, min(table.floor for table in tables)
        if similarity <= floor:
            return not_similar(near[0], floor)
        if not any(_measured(table.levels, steps) for table in tables):
            return f"not usable: no run of {steps} steps or fewer was profiled"
        if not near[0].may_copy:
            return (
                f"not usable: such a start lost quality or kept too much of an image that this request does not edit, "
                f"when profiled (similarity {similarity:.3f}; variation=same allows likeness)"
            )
        return f"not usable: such a change of the prompt lost quality when profiled (similarity {similarity:.3f})"

    def note(self, near: Near) -> str:
        return self._tables.note(near) if self._tables and self._of(near) is None else ""

    def source(self, near: Near) -> str:
        return self._tables.source(near) if self._tables and self._of(near) is None else ""

    def _of(self, near: Near) -> LearnedTable | None:
        if near.kind == LATENT:
            return self._latents
        return self._images.get((near.run_by, near.made_by)) if near.kind == IMAGE else None

    def _latest(self, table: LearnedTable, near: Sequence[Near], steps: int) -> list[int]:
        """Return the largest K of T = `steps`. A T that was not measured takes the smaller share of its neighbours."""
        measured = _measured(table.levels, steps)
        if not measured:
            return [0] * len(near)
        shares, unknown, copying, similar = self._recognised(table, near)
        least = np.where(similar, steps, 0)
        for of in measured:
            levels, free, bounded = self._margins(table, of)
            score = expected(shares, unknown, free)
            if copying.any():
                score[copying] = expected(shares[copying], unknown[copying], bounded)
            ks = np.array([0, *levels.ks]) * steps // of
            least = np.minimum(least, ks[last_level(score, levels.margin)])
        found: list[int] = least.tolist()
        return found

    def _recognised(self, table: LearnedTable, near: Sequence[Near]) -> tuple[Floats, Floats, Bools, Bools]:
        """Return the kinds' probabilities, the shares of unknown words, whose copying is bounded, and who is similar
        enough. A planner asks about the same candidates for each T: the last answer is kept."""
        if self._last is None or self._last[0] is not table or self._last[1] != near:
            found, unknown = features(near, table.knots, table.places)
            copying = np.array([not one.may_copy for one in near], bool)
            answer = probabilities(table, found), unknown, copying, found[:, 0] > table.floor
            self._last = table, list(near), answer
        return self._last[2]

    def _margins(self, table: LearnedTable, steps: int) -> tuple[Levels, Floats, Floats]:
        key = id(table), steps
        if key not in self._of_kinds:
            levels = table.levels[steps]
            free, bounded = (margins(levels.change, levels.error, self._allowed, copying) for copying in (False, True))
            self._of_kinds[key] = levels, free, bounded
        return self._of_kinds[key]


def _measured(levels: Mapping[int, Levels], steps: int) -> list[int]:
    """Return `steps` where that T was measured, else the measured T just below and above; the lower one alone where
    none is above, none where none is below."""
    if steps in levels:
        return [steps]
    below, above = [of for of in levels if of < steps], [of for of in levels if of > steps]
    if not below:
        return []
    return [max(below), *([min(above)] if above else [])]
