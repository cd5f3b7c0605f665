"""Window of the finished images that jobs can start from: count, bytes and age limits (MoDM §4.1, §5.4 and FAQ 10)."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.cache_maintainer.eviction.scored import Policy, StateStore
from services.cache_maintainer.eviction.states import Key
from shared.domain.types import State


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the window; all of them hold at once."""

    max_count: int
    max_bytes: int
    max_age_s: float = 0.0
    """0 for no age limit."""


class Window:
    """Images in a state store of their own, so that latents never displace images, and images never displace latents.

    MoDM evicts in the order of arrival (FIFO): "automatic eviction after a fixed time window" prevents a few popular
    images from starting most requests. Any other policy can be set. Age is counted from arrival under every policy.
    """

    def __init__(self, policy: Policy, limits: Limits, states: Iterable[State] = ()) -> None:
        self.shelf = StateStore(policy)
        self.limits = limits
        self._arrived: list[tuple[float, Key]] = []
        """Heap by arrival time, empty without an age limit. Items of images that left the store are skipped."""
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
        """Remove and return the images to evict before the incoming images, which alone fit the window, are
        inserted."""
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
    """Return the images that an empty window could hold, as position → bytes, preferring the last ones.

    `sizes` has the bytes of each image; None means no image. An image larger than the whole window is skipped.
    """
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
