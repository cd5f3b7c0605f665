"""Which K a similarity allows, which is there, and which candidate is started from (NIRVANA §5.3.1, Fig. 10; §5.4)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from shared.models.k_table import KTable


def shifted(min_similarity: float, savings: float) -> float:
    """A threshold under the savings ↔ quality knob (NIRVANA §5.3.1, "Quality vs. performance tradeoff").

    The knob scales the distance to identity, 1 − similarity: halved at 0 (best quality), as profiled at .5, doubled at
    1 (most steps saved). A distance fits every encoder, whatever range its cosines fill.
    """
    return 1 - (1 - min_similarity) * 4 ** (savings - 0.5)


class Ladder:
    """A K table made ready for one T and one knob, so that many similarities are looked up fast."""

    def __init__(self, table: KTable, steps: int, savings: float = 0.5) -> None:
        levels = sorted((shifted(level.min_similarity, savings), level.k) for level in table.levels)
        self._above = [similarity for similarity, _ in levels]
        highest, self._k = 0, [0]
        for _, k in levels:
            highest = max(highest, k)
            self._k.append(highest * steps // table.steps)

    @property
    def steps(self) -> tuple[int, ...]:
        """Those that it allows at all, rising."""
        return tuple(sorted({*self._k} - {0}))

    def wished(self, similarity: float) -> int:
        """The largest K the table allows above this similarity: K·steps/T, rounded down. 0: start from noise."""
        return self._k[bisect_left(self._above, similarity)]


def allowed_step(table: KTable, similarity: float, steps: int, savings: float = 0.5) -> int:
    """`Ladder.wished` for one similarity."""
    return Ladder(table, steps, savings).wished(similarity)


def largest_present(present: Iterable[int], wished: int) -> int:
    """Handling of holes: the largest K that is there and not above the wished one; 0 when none is (NIRVANA §5.4)."""
    largest = 0
    for k in present:
        if largest < k <= wished:
            largest = k
    return largest


class Weighed(NamedTuple):
    """What one candidate could do."""

    start_step: int
    """0: nothing."""
    similarity: float
    entry_id: str
    allowed_step: int


class Startable(Protocol):
    """A candidate that was weighed."""

    @property
    def start_step(self) -> int: ...
    @property
    def similarity(self) -> float: ...
    @property
    def entry_id(self) -> str: ...


class Wishing(Startable, Protocol):
    """One that says what its similarity allowed, too."""

    @property
    def allowed_step(self) -> int: ...


S = TypeVar("S", bound=Startable)


def weigh(ladder: Ladder, entry_id: str, similarity: float, present: Iterable[int]) -> Weighed:
    """`present`: the steps (of this request's T) whose states the entry holds."""
    wished = ladder.wished(similarity)
    return Weighed(largest_present(present, wished) if wished else 0, similarity, entry_id, wished)


def best(candidates: Iterable[S]) -> S | None:
    """The one that is started from, of candidates of one kind; None: none of them can be."""
    return max((one for one in candidates if one.start_step), key=_preference, default=None)


def _preference(one: Startable) -> tuple[int, float, str]:
    """The largest: the fewest steps left, then the more similar, then the younger entry."""
    return one.start_step, one.similarity, one.entry_id


def should_widen_search(nearest: Sequence[Wishing], asked: int) -> bool:
    """Whether an entry less similar than those that were asked for may start a request later than all of these do: the
    last of them allows a later K than any of them holds a state for.

    So it is where many hits were kept, which leave only the states after their start (FlexCache §4.2.4): holes in all
    of the nearest (NIRVANA §5.4), and none in an entry a little further away.
    """
    if len(nearest) < asked:
        return False
    latest = best(nearest)
    return nearest[-1].allowed_step > (latest.start_step if latest else 0)


def trim_candidates(weighed: Sequence[S], asked: int, chosen: S | None) -> Sequence[S]:
    """What a lookup that went further leaves on record: those it asked for at first, and the one it chose."""
    nearest = weighed[:asked]
    return nearest if chosen is None or chosen in nearest else [*nearest, chosen]
