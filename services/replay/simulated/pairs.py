"""Pairs in a replay: the object of one entry over the background of another, chosen as `starts_pairs` chooses.

`services.retriever.pairs` builds an option with its reason for every pair, for the plan of one request. A replay needs
the chosen pair alone; a test compares both.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from services.replay.policy import PolicySettings
from services.replay.traces.load import LiveRows, Load
from services.retriever.pairs import SHOWN, SIDE
from services.retriever.selection import Ladder, largest_present
from shared.domain.errors import ConfigurationError


class Present(Protocol):
    """States of each live entry, as steps of the looked-up request's T."""

    def get(self, request: int, /) -> Sequence[int] | None: ...


class NearPart(NamedTuple):
    """One live entry near a part of the prompt."""

    request: int
    similarity: float
    steps: frozenset[int]


class Pair(NamedTuple):
    """A start from two entries."""

    start_step: int
    similarity: float
    """The lower one of object and background."""
    object: int
    background: int


def best_pair(
    ladder: Ladder, objects: Sequence[NearPart], backgrounds: Sequence[NearPart], above: int = 0
) -> Pair | None:
    """Return the pair that saves the most steps, and more than `above`; None without one.

    Both lists are ordered by falling similarity. Among equals, the pair of the highest similarity is taken; of the
    first SHOWN of these, the one with the youngest object (services.retriever.choice).
    """
    found, allowed = list[Pair](), [ladder.wished(one.similarity) for one in backgrounds]
    for thing in objects:
        of_object = ladder.wished(thing.similarity)
        if of_object <= above:
            break
        for place, of_background in zip(backgrounds, allowed, strict=True):
            if of_background <= above:
                break
            if thing.request == place.request:
                continue
            start = largest_present(thing.steps & place.steps, min(of_object, of_background))
            if start > above:
                similarity = min(thing.similarity, place.similarity)
                found.append(Pair(start, similarity, thing.request, place.request))
    shown = heapq.nsmallest(SHOWN, found, key=lambda one: (-one.start_step, -one.similarity))
    return max(shown, key=lambda one: one[:3], default=None)


class PairSearch:
    """The searches by object and by background among live entries that have both parts."""

    def __init__(self, parts: tuple[Load, Load], limit: int) -> None:
        """limit: nearest live entries of each part that are read; the first SIDE that can start a clip are combined."""
        self._parts, self._limit = parts, limit
        self._live = [LiveRows(part, any_group=False) for part in parts]
        self._steps: dict[tuple[int, ...], frozenset[int]] = {}

    def add(self, request: int) -> None:
        if self.has(request):
            for live in self._live:
                live.add(request)

    def remove(self, request: int) -> None:
        if self.has(request):
            for live in self._live:
                live.remove(request)

    def has(self, request: int) -> bool:
        """Return whether the request's prompt names both parts."""
        groups = self._parts[0].group_of
        return groups is not None and int(groups[request]) >= 0

    def best(self, ladder: Ladder, request: int, present: Present, above: int) -> Pair | None:
        """Return `best_pair` of this request."""
        if not self.has(request) or above >= max(ladder.steps, default=0):
            return None
        sides = list[list[NearPart]]()
        for number in range(len(self._parts)):
            sides.append(self._nearest(number, ladder, request, present, above))
            if not sides[-1]:
                return None
        return best_pair(ladder, sides[0], sides[1], above)

    def _nearest(self, number: int, ladder: Ladder, request: int, present: Present, above: int) -> list[NearPart]:
        """Return the nearest live entries whose similarity allows more steps than `above`."""
        near = self._parts[number].neighbours
        indices, similarities = near.indices[request].tolist(), near.similarities[request].tolist()
        found, read = list[NearPart](), 0
        for other, similarity in zip(indices, similarities, strict=True):
            if other < 0 or (wished := ladder.wished(similarity)) <= above:
                return found
            if (steps := present.get(other)) is not None:
                read += 1
                if largest_present(steps, wished):
                    found.append(NearPart(other, similarity, self._set(steps)))
                if len(found) == SIDE or read == self._limit:
                    return found
        if not near.cut[request]:
            return found
        every = self._live[number].nearest(request, self._limit, near.floor)
        able = [
            NearPart(other, similarity, self._set(present.get(other) or ()))
            for other, similarity in every
            if (wished := ladder.wished(similarity)) > above and largest_present(present.get(other) or (), wished)
        ]
        return able[:SIDE]

    def _set(self, steps: Sequence[int]) -> frozenset[int]:
        key = tuple(steps)
        return self._steps.setdefault(key, frozenset(key))


def pair_search(load: Load, policy: PolicySettings) -> PairSearch | None:
    """Return the policy's search for pairs; None for a policy without. Raises ConfigurationError for a load without
    parts."""
    if not policy.pairs:
        return None
    if load.parts is None:
        raise ConfigurationError(f"policy {policy.title!r}: the load has no parts; prepare it with Options.parts")
    return PairSearch(load.parts, max(policy.candidates, policy.further_candidates))
