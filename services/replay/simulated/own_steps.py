"""Requests that each take a T of their own: which K their similarity allows, and which states of other runs fit theirs,
as the services weigh them (NIRVANA §5.3.1; design §2, Compatibility)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from services.retriever.selection import Ladder, largest_present
from shared.domain.plan_rules import scale_steps
from shared.models.card import ModelCard
from shared.models.k_table import KTable

Ints = npt.NDArray[np.int64]


class Present(Protocol):
    """What is there of each earlier request's picture: the steps of the asking request's T that it can start after."""

    def get(self, request: int, /) -> Sequence[int] | None: ...
    def __getitem__(self, request: int, /) -> Sequence[int]: ...


class OwnSteps:
    """What a lookup goes by, once for each T that is asked for."""

    def __init__(
        self,
        steps: Sequence[int],
        card: ModelCard,
        table: KTable,
        present: Mapping[int, Sequence[int]],
        *,
        pictures: bool,
    ) -> None:
        """steps: (requests,), T of each; card: whose schedule says what fits; present: request → the steps, of its own
        T, of its states; pictures: it holds pictures instead, and each has every noise level (MoDM §5.2)."""
        self._steps = steps

        def of(total: int) -> tuple[Ladder, Present]:
            ladder = Ladder(table, total)
            if pictures:
                return ladder, _AtEveryLevel(present, ladder)
            return ladder, _Fitting(present, steps, total, partial(card.step_in, steps=total))

        self._of: Callable[[int], tuple[Ladder, Present]] = cache(of)

    def of(self, request: int) -> tuple[Ladder, Present]:
        """Its K table, and what is there for it."""
        return self._of(self._steps[request])


class _Fitting:
    """The states of all runs as a run of `total` steps sees them; 0: that noise level is none of its own."""

    def __init__(
        self,
        present: Mapping[int, Sequence[int]],
        steps: Sequence[int],
        total: int,
        step_in: Callable[[int, int], int],
    ) -> None:
        self._present, self._steps, self._total = present, steps, total
        self._step_in = cache(step_in)

    def get(self, request: int, /) -> Sequence[int] | None:
        return self[request] if request in self._present else None

    def __getitem__(self, request: int, /) -> Sequence[int]:
        of = self._steps[request]
        there = self._present[request]
        return there if of == self._total else [self._step_in(step, of) for step in there]


class _AtEveryLevel:
    """Pictures, each of which can be brought to whatever K is allowed."""

    def __init__(self, present: Mapping[int, Sequence[int]], ladder: Ladder) -> None:
        self._present, self._all = present, ladder.steps

    def get(self, request: int, /) -> Sequence[int] | None:
        return self._all if request in self._present else None

    def __getitem__(self, request: int, /) -> Sequence[int]:
        return self._all


class OwnStates:
    """What the offline bound reckons with where each request takes a T of its own (`bound.States`)."""

    def __init__(self, steps: Ints, card: ModelCard, table: KTable, kept: Sequence[int]) -> None:
        """steps: (requests,), T of each; kept: the K of 50 after which a policy may keep a state."""
        totals, self._kind = np.unique(steps, return_inverse=True)
        self._ladders = [Ladder(table, total) for total in totals.tolist()]
        self._starts = _starts(totals.tolist(), card, kept)
        self.levels = len(self._starts)

    def wished(self, requests: Ints, similarities: npt.NDArray[np.float32]) -> Ints:
        found = np.zeros(len(requests), np.int64)
        for kind, rows in _by(self._kind[requests]):
            found[rows] = np.fromiter(map(self._ladders[kind].wished, similarities[rows].tolist()), np.int64, len(rows))
        return found

    def starts(self, level: int, sources: Ints, requests: Ints) -> Ints:
        places: Ints = self._starts[level, self._kind[sources], self._kind[requests]]
        return places

    def at_most(self, requests: Ints, wished: Ints) -> Ints:
        found = np.zeros(len(requests), np.int64)
        for kind, rows in _by(self._kind[requests]):
            able = np.unique(self._starts[:, :, kind]).tolist()
            found[rows] = [largest_present(able, one) for one in wished[rows].tolist()]
        return found


def _starts(totals: Sequence[int], card: ModelCard, kept: Sequence[int]) -> Ints:
    """(levels, T, T'): where a run of T' steps would start from the state that a run of T keeps at this level; 0: it
    keeps none, or that noise level is none of the other's."""
    of = [scale_steps(kept, total) for total in totals]
    starts = np.zeros((max(map(len, of), default=0), len(totals), len(totals)), np.int64)
    for kind, (total, steps) in enumerate(zip(totals, of, strict=True)):
        for level, step in enumerate(steps):
            starts[level, kind] = [card.step_in(step, total, other) for other in totals]
    return starts


def _by(kinds: Ints) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    """Each kind that there is, and the rows that are of it."""
    order = np.argsort(kinds, kind="stable")
    edges = np.flatnonzero(np.diff(kinds[order])) + 1
    for rows in np.split(order, edges) if len(order) else ():
        yield int(kinds[rows[0]]), rows
