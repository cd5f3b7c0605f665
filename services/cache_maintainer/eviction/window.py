"""The finished pictures that can be started from: a window by count, bytes and age (MoDM §4.1, §5.4 and FAQ 10)."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.cache_maintainer.eviction.scored import Key, Policy, StateStore
from shared.domain.types import State


@dataclass(frozen=True, slots=True)
class Limits:
    """All of them hold."""

    max_count: int
    max_bytes: int
    max_age_s: float = 0.0
    """0: no picture is too old."""


class Window:
    """Pictures on a shelf of their own: what fills the cache with latents pushes no picture out, nor the reverse.

    In the order of arrival (FIFO, MoDM's choice: "automatic eviction after a fixed time window" keeps a few popular
    pictures from starting everything) or of any other policy; age is counted from arrival whatever the policy is.
    """

    def __init__(self, policy: Policy, limits: Limits, states: Iterable[State] = ()) -> None:
        self.shelf = StateStore(policy)
        self.limits = limits
        self._arrived: list[tuple[float, Key]] = []
        """A heap; what left the shelf otherwise is skipped when it comes up. Empty while no picture is too old."""
        for state in sorted(states, key=lambda state: (state.created_at, state.entry_id)):
            self.insert(state)

    def insert(self, state: State) -> None:
        self.shelf.insert(state)
        if self.limits.max_age_s:
            heapq.heappush(self._arrived, _arrival(state))
            if len(self._arrived) > 64 + 4 * len(self.shelf):  # mostly outdated items
                self._arrived = [_arrival(live) for live in self.shelf]
                heapq.heapify(self._arrived)

    def make_room(self, incoming: int, incoming_bytes: int, now: float) -> list[State]:
        """The pictures to evict before so many are inserted, which by themselves fit; they are off the shelf now."""
        victims = self._aged(now)
        while len(self.shelf) and (
            len(self.shelf) + incoming > self.limits.max_count
            or self.shelf.bytes + incoming_bytes > self.limits.max_bytes
        ):
            victims.append(self.shelf.pop())
        return victims

    def _aged(self, now: float) -> list[State]:
        victims = []
        while self._arrived and self.limits.max_age_s < now - self._arrived[0][0]:
            arrived_at, key = heapq.heappop(self._arrived)
            live = self.shelf.get(key)
            if live is not None and live.created_at == arrived_at:
                self.shelf.remove(key)
                victims.append(live)
        return victims


def _arrival(state: State) -> tuple[float, Key]:
    return state.created_at, (state.entry_id, state.step)


def last_that_fit(sizes: Sequence[int | None], limits: Limits) -> dict[int, int]:
    """Of pictures of these bytes (None: there is none) as many as an empty window could hold, by their places: the last
    of those that alone would fit."""
    kept: dict[int, int] = {}
    total = 0
    for place in range(len(sizes) - 1, -1, -1):
        size = sizes[place]
        if size is None or size > limits.max_bytes:
            continue
        total += size
        if len(kept) == limits.max_count or total > limits.max_bytes:
            break
        kept[place] = size
    return kept
