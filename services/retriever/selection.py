"""Selection of K: the K that a similarity allows, the nearest one that is cached, and the candidate to start from
(NIRVANA §5.3.1, Fig. 10; §5.4)."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from shared.models.k_table import KTable


def shifted(min_similarity: float, savings: float) -> float:
    """Shift a threshold by the savings ↔ quality knob (NIRVANA §5.3.1, "Quality vs. performance tradeoff").

    The knob scales the distance to identity, 1 − similarity: halved at 0 (best quality), as profiled at .5, doubled at
    1 (most steps saved). Scaling the distance works for every encoder, whatever the range of its cosines.
    """
    return 1 - (1 - min_similarity) * 4 ** (savings - 0.5)


def lowest(table: KTable, savings: float, floor: float | None = None) -> float:
    """Return the similarity up to which nothing is reused: that of the lowest level, or the floor, which the knob does
    not move."""
    return max(shifted(table.lowest_similarity, savings), -1.0 if floor is None else floor)


class Ladder:
    """A K table prepared for one T and one knob, for fast lookups of many similarities."""

    def __init__(self, table: KTable, steps: int, savings: float = 0.5, floor: float | None = None) -> None:
        """floor: similarity up to which no level counts; None: the papers' rule, levels alone."""
        least = -math.inf if floor is None else floor
        levels = sorted((max(shifted(level.min_similarity, savings), least), level.k) for level in table.levels)
        self._above = [similarity for similarity, _ in levels]
        highest, self._k = 0, [0]
        for _, k in levels:
            highest = max(highest, k)
            self._k.append(highest * steps // table.steps)

    @property
    def steps(self) -> tuple[int, ...]:
        """All steps that the table can allow, ascending."""
        return tuple(sorted({*self._k} - {0}))

    def wished(self, similarity: float) -> int:
        """Return the largest K that the table allows above this similarity: K·steps/T, rounded down. 0: start from
        noise."""
        return self._k[bisect_left(self._above, similarity)]


def allowed_step(table: KTable, similarity: float, steps: int, savings: float = 0.5, floor: float | None = None) -> int:
    """Return `Ladder.wished` for one similarity."""
    return Ladder(table, steps, savings, floor).wished(similarity)


def largest_present(present: Iterable[int], wished: int) -> int:
    """Return the largest cached K that is not above the allowed step; 0 when there is none. This handles holes (NIRVANA
    §5.4)."""
    largest = 0
    for k in present:
        if largest < k <= wished:
            largest = k
    return largest


class Weighed(NamedTuple):
    """One candidate with the start that it allows."""

    start_step: int
    """0: no start."""
    similarity: float
    entry_id: str
    allowed_step: int

    @property
    def steps(self) -> int:
        """T of both steps as a Candidate has it: 0, the request's."""
        return 0


class Startable(Protocol):
    """A candidate with the step at which it can start."""

    @property
    def start_step(self) -> int: ...
    @property
    def similarity(self) -> float: ...
    @property
    def entry_id(self) -> str: ...


class Wishing(Startable, Protocol):
    """A candidate with the step at which it can start, and the step that its similarity allows."""

    @property
    def allowed_step(self) -> int: ...


S = TypeVar("S", bound=Startable)


def weigh(ladder: Ladder, entry_id: str, similarity: float, present: Iterable[int]) -> Weighed:
    """Weigh one candidate. present: the steps (of this request's T) whose states the entry holds."""
    wished = ladder.wished(similarity)
    return Weighed(largest_present(present, wished) if wished else 0, similarity, entry_id, wished)


def best(candidates: Iterable[S]) -> S | None:
    """Return the candidate to start from, among candidates of one kind; None when none can be used."""
    return max((one for one in candidates if one.start_step), key=_preference, default=None)


def _preference(one: Startable) -> tuple[int, float, str]:
    """Sort key; the largest wins: most steps saved, then higher similarity, then the younger entry."""
    return one.start_step, one.similarity, one.entry_id


def should_widen_search(nearest: Sequence[Wishing], asked: int) -> bool:
    """Return whether a wider search may find a later start: the least similar candidate allows a later K than any
    candidate has a state for.

    Hits store only the states after their start (FlexCache §4.2.4). Where many hits were stored, all of the nearest
    entries may have the same hole (NIRVANA §5.4), while an entry a little further away has none.
    """
    if len(nearest) < asked:
        return False
    latest = best(nearest)
    return nearest[-1].allowed_step > (latest.start_step if latest else 0)


def trim_candidates(weighed: Sequence[S], asked: int, chosen: S | None) -> Sequence[S]:
    """Return the candidates of a wider search to keep in the plan: the nearest `asked`, and the chosen one."""
    nearest = weighed[:asked]
    return nearest if chosen is None or chosen in nearest else [*nearest, chosen]
