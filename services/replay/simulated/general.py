"""General caches adapted to states, for comparison: GDSF, S3-FIFO and W-TinyLFU.

These caches expect evicted objects to return under the same key. The key of an evicted state never returns, because a
new image makes a new entry. The lists of evicted keys in S3-FIFO and TinyLFU could never be hit and are left out.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from services.cache_maintainer.eviction import policies as shelves
from services.cache_maintainer.eviction.scored import Score, StateStore
from services.cache_maintainer.eviction.states import Key
from shared.domain.types import State


@dataclass(frozen=True, slots=True)
class Gdsf:
    """Greedy-Dual-Size-Frequency (Cherkasova 1998): L + f·K/bytes, with f uses of a state that saves K steps.

    L is the score of the last evicted state; GdsfStateStore adds it.
    """

    name: ClassVar[str] = "gdsf"
    initial_uses: float = 1.0

    def score(self, state: State) -> Score:
        """Return (f·K/bytes, time of last use), without L."""
        return ((state.uses + self.initial_uses) * state.step / max(state.bytes, 1), state.used_at)


@dataclass(frozen=True, slots=True)
class S3Fifo:
    """Two of the three queues of S3-FIFO (Yang et al., SOSP 2023); the third holds evicted keys and is left out."""

    name: ClassVar[str] = "s3fifo"
    small: float = 0.1
    """Share of the bytes for the queue of new states."""
    most_uses: int = 3

    def score(self, state: State) -> Score:
        return (min(state.uses, self.most_uses), state.created_at)


@dataclass(frozen=True, slots=True)
class WTinyLfu:
    """A window, then a segmented LRU that admits only states used more than the state they replace (Einziger 2017)."""

    name: ClassVar[str] = "wtinylfu"
    window: float = 0.01
    """Share of the bytes for the window."""
    protected: float = 0.8
    """Share of the other bytes for states that were used again."""

    def score(self, state: State) -> Score:
        return (state.uses, state.used_at)


class GdsfStateStore(StateStore):
    """Fix a state's score when the state is inserted or used; L grows with every eviction."""

    def __init__(self, policy: Gdsf, states: Iterable[State] = ()) -> None:
        self._inflation = 0.0
        self._fixed: dict[Key, Score] = {}
        super().__init__(policy, states)

    def remove(self, key: Key) -> None:
        super().remove(key)
        self._fixed.pop(key, None)

    def score(self, key: Key) -> Score:
        return self._fixed[key]

    def _push(self, key: Key) -> None:
        benefit, *ties = self.policy.score(self._states[key])
        self._fixed[key] = (self._inflation + benefit, *ties)
        super()._push(key)

    def _leaving(self, now: float) -> Iterator[State]:
        while True:
            score, key = heapq.heappop(self._heap)
            if self._fixed.get(key) == score:
                self._inflation = score[0]
                yield self._states[key]


class S3FifoStateStore(StateStore):
    """Move states used at least twice from the small queue to the main queue; there each use gives another round."""

    def __init__(self, policy: S3Fifo, states: Iterable[State] = ()) -> None:
        self._s3 = policy
        self._small: OrderedDict[Key, None] = OrderedDict()
        self._small_bytes = 0
        self._main: OrderedDict[Key, int] = OrderedDict()
        """States of the main queue, each with the uses already spent on rounds."""
        super().__init__(policy, states)

    def remove(self, key: Key) -> None:
        if key in self._small:
            del self._small[key]
            self._small_bytes -= self._states[key].bytes
        self._main.pop(key, None)
        super().remove(key)

    def _push(self, key: Key) -> None:
        if key not in self._main and key not in self._small:
            self._small[key] = None
            self._small_bytes += self._states[key].bytes

    def _leaving(self, now: float) -> Iterator[State]:
        while True:
            if self._small and (self._small_bytes >= self._s3.small * self.bytes or not self._main):
                key = next(iter(self._small))
                state = self._states[key]
                if state.uses < 2:
                    yield state
                    continue
                del self._small[key]
                self._small_bytes -= state.bytes
                self._main[key] = 0
                continue
            key = next(iter(self._main))
            unpaid = min(self._states[key].uses - self._main[key], self._s3.most_uses)
            if unpaid <= 0:
                yield self._states[key]
                continue
            self._main[key] = self._states[key].uses - unpaid + 1
            self._main.move_to_end(key)


class WTinyLfuStateStore(StateStore):
    """Queues in order of last use: window → candidates → probation ⇄ protected."""

    def __init__(self, policy: WTinyLfu, states: Iterable[State] = ()) -> None:
        self._shares = policy
        self._window: OrderedDict[Key, int] = OrderedDict()
        self._candidates: OrderedDict[Key, None] = OrderedDict()
        """States that left the window of a full cache and await their comparison."""
        self._probation: OrderedDict[Key, None] = OrderedDict()
        self._protected: OrderedDict[Key, int] = OrderedDict()
        self._window_bytes = self._protected_bytes = 0
        self._full = False
        super().__init__(policy, states)

    def remove(self, key: Key) -> None:
        self._window_bytes -= self._window.pop(key, 0)
        self._protected_bytes -= self._protected.pop(key, 0)
        self._candidates.pop(key, None)
        self._probation.pop(key, None)
        super().remove(key)

    def _push(self, key: Key) -> None:
        size = self._states[key].bytes
        if key in self._probation or key in self._candidates:
            self._probation.pop(key, None)
            self._candidates.pop(key, None)
            self._protected[key] = size
            self._protected_bytes += size
        elif key in self._protected:
            self._protected.move_to_end(key)
        elif key in self._window:
            self._window.move_to_end(key)
        else:
            self._window[key] = size
            self._window_bytes += size
        self._spill()

    def _spill(self) -> None:
        while len(self._window) > 1 and self._window_bytes > self._shares.window * self.bytes:
            key, size = self._window.popitem(last=False)
            self._window_bytes -= size
            (self._candidates if self._full else self._probation)[key] = None
        while self._protected_bytes > self._shares.protected * self.bytes:
            key, size = self._protected.popitem(last=False)
            self._protected_bytes -= size
            self._probation[key] = None

    def _leaving(self, now: float) -> Iterator[State]:
        self._full = True
        while True:
            queue = self._probation or self._candidates or self._window or self._protected
            weakest = self._states[next(iter(queue))]
            if self._candidates and self._probation:
                key = next(iter(self._candidates))
                if self._states[key].uses <= weakest.uses:
                    yield self._states[key]
                    continue
                del self._candidates[key]
                self._probation[key] = None
            yield weakest


_GENERAL: dict[str, Callable[[shelves.Knobs, Iterable[State]], StateStore]] = {
    "gdsf": lambda knobs, states: GdsfStateStore(Gdsf(knobs.initial_uses), states),
    "s3fifo": lambda _, states: S3FifoStateStore(S3Fifo(), states),
    "wtinylfu": lambda _, states: WTinyLfuStateStore(WTinyLfu(), states),
}
SHELVES = (*shelves.SHELVES, *_GENERAL)
"""Names of the policies that a replay can run: those of the cache maintainer and those of this module."""


def open_state_store(name: str, knobs: shelves.Knobs, states: Iterable[State] = ()) -> StateStore:
    """Open the state store of a policy in SHELVES; raises KeyError for another name."""
    return _GENERAL[name](knobs, states) if name in _GENERAL else shelves.open_state_store(name, knobs, states)
