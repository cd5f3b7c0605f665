"""Requests with a T of their own: the K that their similarity allows, and the states of other runs that fit.

The services decide in the same way (NIRVANA §5.3.1; docs/architecture.md, Models).
"""

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
    """States of each earlier request's image, as steps of the looked-up request's T."""

    def get(self, request: int, /) -> Sequence[int] | None: ...
    def __getitem__(self, request: int, /) -> Sequence[int]: ...


class OwnSteps:
    """K table and present states of a lookup, computed once for each T."""

    def __init__(
        self,
        steps: Sequence[int],
        card: ModelCard,
        table: KTable,
        present: Mapping[int, Sequence[int]],
        *,
        pictures: bool,
    ) -> None:
        """Take T of each request (`steps`, shape (requests,)) and the model whose schedule decides which states fit.

        `present` maps a request to its states, as steps of its own T. With `pictures` the cache holds finished images,
        each of which can have every noise level (MoDM §5.2).
        """
        self._steps = steps

        def of(total: int) -> tuple[Ladder, Present]:
            ladder = Ladder(table, total)
            if pictures:
                return ladder, _AtEveryLevel(present, ladder)
            return ladder, _Fitting(present, steps, total, partial(card.step_in, steps=total))

        self._of: Callable[[int], tuple[Ladder, Present]] = cache(of)

    def of(self, request: int) -> tuple[Ladder, Present]:
        """Return the K table of the request's T, and the present states in that T."""
        return self._of(self._steps[request])


class _Fitting:
    """States of all runs in steps of a run of `total` steps; 0: the run has no such noise level."""

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
    """Finished images, each of which can start at every allowed K."""

    def __init__(self, present: Mapping[int, Sequence[int]], ladder: Ladder) -> None:
        self._present, self._all = present, ladder.steps

    def get(self, request: int, /) -> Sequence[int] | None:
        return self._all if request in self._present else None

    def __getitem__(self, request: int, /) -> Sequence[int]:
        return self._all


class OwnStates:
    """States for the offline bound if each request has its own T (see `bound.States`)."""

    def __init__(self, steps: Ints, card: ModelCard, table: KTable, kept: Sequence[int]) -> None:
        """Take T of each request (`steps`, shape (requests,)) and the K of 50 after which a policy may keep a state."""
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
    """Return starts, shape (levels, T, T'): the step at which a run of T' steps starts from a state of a run of T.

    The start is 0 if the run of T keeps no state at this level, or the run of T' has no such noise level.
    """
    of = [scale_steps(kept, total) for total in totals]
    starts = np.zeros((max(map(len, of), default=0), len(totals), len(totals)), np.int64)
    for kind, (total, steps) in enumerate(zip(totals, of, strict=True)):
        for level, step in enumerate(steps):
            starts[level, kind] = [card.step_in(step, total, other) for other in totals]
    return starts


def _by(kinds: Ints) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    """Yield each kind with its rows."""
    order = np.argsort(kinds, kind="stable")
    edges = np.flatnonzero(np.diff(kinds[order])) + 1
    for rows in np.split(order, edges) if len(order) else ():
        yield int(kinds[rows[0]]), rows
