"""Window of the finished images that jobs can start from, with limits of count and bytes (MoDM §4.1, §5.4, FAQ 10)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.cache_maintainer.eviction.scored import Policy, StateStore
from shared.domain.types import State


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the window; both hold at once."""

    max_count: int
    max_bytes: int


class Window:
    """Images in a state store of their own, so that latents never displace images, and images never displace latents.

    MoDM evicts in the order of arrival (FIFO): "automatic eviction after a fixed time window" prevents a few popular
    images from starting most requests. Any other policy can be set. `cache_max_age_s` is MoDM's time window.
    """

    def __init__(self, policy: Policy, limits: Limits, states: Iterable[State] = ()) -> None:
        self.shelf = StateStore(policy)
        self.limits = limits
        for state in sorted(states, key=lambda state: (state.created_at, state.entry_id)):
            self.insert(state)

    def insert(self, state: State) -> None:
        self.shelf.insert(state)

    def make_room(self, incoming: int, incoming_bytes: int) -> list[State]:
        """Remove and return the images to evict before the incoming images, which alone fit the window, are
        inserted."""
        victims = []
        while len(self.shelf) and (
            len(self.shelf) + incoming > self.limits.max_count
            or self.shelf.bytes + incoming_bytes > self.limits.max_bytes
        ):
            victims.append(self.shelf.pop())
        return victims


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
