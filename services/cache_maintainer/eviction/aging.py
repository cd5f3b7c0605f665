"""Policies whose scores fall with time alone.

States of one group age alike, so only the oldest state of each group is compared.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

from services.cache_maintainer.eviction.scored import Policy, Score, StateStore
from services.cache_maintainer.eviction.states import Key
from shared.domain.types import State


class AgingPolicy(Policy, Protocol):
    """Policy whose score depends on the state's group and falls with the seconds since its last use."""

    def group(self, state: State) -> Hashable:
        """Return the state's group. Of two states in a group, the longer unused one is never worth more."""
        ...

    def worth(self, state: State, age_s: float) -> float: ...


@dataclass(frozen=True, slots=True)
class Lrbu:
    """Least Reused Benefit Unit: f·K / (bytes · seconds since the last use) (FlexCache §4.2.3, eq. 3).

    The paper does not specify the initial f, as with LCBFU. With 0, every unused state would score 0.
    """

    name: ClassVar[str] = "lrbu"
    initial_uses: float = 1.0

    def score(self, state: State) -> Score:
        """Return the score one second after the last use."""
        return (self.group(state),)

    def group(self, state: State) -> float:
        return (state.uses + self.initial_uses) * state.step / max(state.bytes, 1)

    def worth(self, state: State, age_s: float) -> float:
        return self.group(state) / max(age_s, 1e-9)


class AgingStateStore(StateStore):
    """State store of an aging policy: one queue per group in order of last use. The queue heads compete for eviction.

    Queue items of states that were used or removed since are dropped when they reach the head.
    """

    def __init__(self, policy: AgingPolicy, states: Iterable[State] = ()) -> None:
        self._aging = policy
        self._queues: dict[Hashable, deque[tuple[float, Key]]] = {}
        self._items = 0
        super().__init__(policy, sorted(states, key=lambda state: (state.used_at, state.created_at)))

    def _push(self, key: Key) -> None:
        state = self._states[key]
        self._queues.setdefault(self._aging.group(state), deque()).append((state.used_at, key))
        self._items += 1
        if self._items > 64 + 4 * len(self._states):  # mostly outdated items
            self._tidy()

    def _tidy(self) -> None:
        for group, queue in list(self._queues.items()):
            live = deque(item for item in queue if self._current(group, item) is not None)
            self._queues[group] = live
            if not live:
                del self._queues[group]
        self._items = sum(map(len, self._queues.values()))

    def _current(self, group: Hashable, item: tuple[float, Key]) -> State | None:
        """Return the item's state if the item is up to date, else None."""
        state = self._states.get(item[1])
        if state is None or state.used_at != item[0] or self._aging.group(state) != group:
            return None
        return state

    def _leaving(self, now: float) -> Iterator[State]:
        heads: list[tuple[float, float, Key, Hashable]] = []
        for group in list(self._queues):
            self._put_head(heads, group, now)
        heapq.heapify(heads)
        while heads:
            _, _, key, group = heapq.heappop(heads)
            state = self._states.get(key)
            if state is not None:  # else the state went with the one that it needs, and `_put_head` drops the item
                self._queues[group].popleft()
                self._items -= 1
                yield state
            before = len(heads)
            self._put_head(heads, group, now)
            if len(heads) > before:
                heapq.heappush(heads, heads.pop())

    def _put_head(self, heads: list[tuple[float, float, Key, Hashable]], group: Hashable, now: float) -> None:
        """Append the group's oldest state with its worth; the caller restores the heap."""
        queue = self._queues[group]
        while queue:
            state = self._current(group, queue[0])
            if state is not None:
                worth = self._aging.worth(state, now - state.used_at)
                heads.append((worth, state.used_at, queue[0][1], group))
                return
            queue.popleft()
            self._items -= 1
        del self._queues[group]
