"""Which states leave when the cache is full: the shelf that every policy fills and clears, and four policies over one
running heap (NIRVANA §5.4)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from shared.domain.types import State
from shared.models.k_table import IMAGE_STEPS

Score = tuple[float, ...]
"""Compared element by element; the smallest leaves first."""
Key = tuple[str, int]
"""(entry id, step)."""


class Wished(Protocol):
    """What a lookup thought of one entry: the step its similarity allows, and the one that is there for it."""

    @property
    def entry_id(self) -> str: ...
    @property
    def allowed_step(self) -> int: ...
    @property
    def start_step(self) -> int: ...


class Wish(NamedTuple):
    """The same, and nothing else."""

    entry_id: str
    allowed_step: int
    start_step: int


@dataclass(slots=True)
class Offer:
    """A finished picture whose states could be kept, who asked for it, and what was looked up for it."""

    entry_id: str
    user: str
    """Empty: nobody in particular."""
    start_step: int
    """K that it started from; 0 from noise."""
    steps: tuple[int, ...]
    """Of its latents, rising."""
    sizes: tuple[int, ...]
    """Bytes of each of them; about the same."""
    at: float
    total: int = 50
    """T: steps of the whole run."""
    wishes: Sequence[Wished] = ()
    """Entries whose latents were thought of."""
    picture_bytes: int | None = None
    """None: its picture is not to start others."""

    @property
    def state_bytes(self) -> int:
        """Of the largest latent."""
        return max(self.sizes, default=0)

    def bytes_of(self, steps: Sequence[int]) -> int:
        """What the latents after these of its steps take."""
        if len(steps) == len(self.steps):
            return sum(self.sizes)
        return sum(size for step, size in zip(self.steps, self.sizes, strict=True) if step in steps)


class Policy(Protocol):
    """A pure score of a state."""

    name: ClassVar[str]

    def score(self, state: State) -> Score: ...


@dataclass(frozen=True, slots=True)
class Lcbfu:
    """Least Computationally Beneficial and Frequently Used: f·K, uses times the steps each use saves (of a picture the
    most that it can, 30 of 50).

    The paper leaves open which f a state starts with and which of equals is evicted first: `initial_uses` is added to
    every f (at 0 all new states score 0, whatever their K), and the longest unused of equals is evicted first.
    """

    name: ClassVar[str] = "lcbfu"
    initial_uses: float = 1.0

    def score(self, state: State) -> Score:
        saves = IMAGE_STEPS[-1] if state.is_picture else state.step
        return ((state.uses + self.initial_uses) * saves, state.used_at, state.created_at)


@dataclass(frozen=True, slots=True)
class Lru:
    """Least recently used."""

    name: ClassVar[str] = "lru"

    def score(self, state: State) -> Score:
        return (state.used_at, state.created_at)


@dataclass(frozen=True, slots=True)
class Lfu:
    """Least frequently used, the longest unused of equals first."""

    name: ClassVar[str] = "lfu"

    def score(self, state: State) -> Score:
        return (state.uses, state.used_at)


@dataclass(frozen=True, slots=True)
class Fifo:
    """First in, first out."""

    name: ClassVar[str] = "fifo"

    def score(self, state: State) -> Score:
        return (state.created_at,)


POLICIES: dict[str, Callable[[], Policy]] = {"lcbfu": Lcbfu, "lru": Lru, "lfu": Lfu, "fifo": Fifo}


class StateStore:
    """Every live state, its bytes, and a min-heap of scores kept as they change.

    A changed score pushes a new heap item; the old one is skipped when it comes up, because it no longer equals the
    state's score.
    """

    def __init__(self, policy: Policy, states: Iterable[State] = ()) -> None:
        self.policy = policy
        self.bytes = 0
        self._last = 0.0
        self._states: dict[Key, State] = {}
        self._count: dict[str, int] = {}
        self._heap: list[tuple[Score, Key]] = []
        for state in states:
            self.insert(state)

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[State]:
        return iter(self._states.values())

    def __contains__(self, key: Key) -> bool:
        return key in self._states

    def get(self, key: Key) -> State | None:
        return self._states.get(key)

    def alive(self, entry_id: str) -> bool:
        """Whether any state of this entry is left."""
        return entry_id in self._count

    def insert(self, state: State) -> None:
        """Adds, or replaces the state of the same entry and step."""
        key = (state.entry_id, state.step)
        self.remove(key)
        self._states[key] = state
        self._count[state.entry_id] = self._count.get(state.entry_id, 0) + 1
        self.bytes += state.bytes
        self._last = max(self._last, state.used_at)
        self._push(key)

    def use(self, key: Key, at: float) -> None:
        """A picture started from this state; unknown ones (evicted meanwhile) are fine."""
        state = self._states.get(key)
        if state is not None:
            self._states[key] = state.used(at)
            self._last = max(self._last, at)
            self._push(key)

    def remove(self, key: Key) -> None:
        state = self._states.pop(key, None)
        if state is None:
            return
        self.bytes -= state.bytes
        self._count[state.entry_id] -= 1
        if not self._count[state.entry_id]:
            del self._count[state.entry_id]

    def score(self, key: Key) -> Score:
        return self.policy.score(self._states[key])

    def looked_up(self, wishes: Sequence[Wished], at: float, total: int = 50) -> None:
        """Hears what a lookup for a run of `total` steps found, used or not; most policies do not care."""

    def admit(self, offer: Offer, max_bytes: int) -> tuple[int, ...]:
        """The steps whose states are worth inserting; here all that the whole budget could hold, the largest first."""
        steps = offer.steps
        return steps[max(0, len(steps) - max_bytes // max(offer.state_bytes, 1)) :] if steps else steps

    def forget(self, entry_id: str) -> None:
        """Hears that an entry it admitted has no states and gets none any more; most policies know nothing of it."""

    def make_room(self, incoming: int, incoming_bytes: int, max_bytes: int, now: float | None = None) -> list[State]:
        """The states to evict before `incoming` states are inserted, least valuable first; they are off the shelf now.

        Nothing while all fit; else as many as are about to be inserted, and more while the bytes do not fit (NIRVANA
        §5.4 counts states, a byte budget must hold for states of any size). `now` is for policies that weigh how long
        a state was not used; None: the time of the last use.
        """
        victims: list[State] = []
        if self.bytes + incoming_bytes <= max_bytes:
            return victims
        leaving = self._leaving(self._last if now is None else now)
        while self._states and (len(victims) < incoming or self.bytes + incoming_bytes > max_bytes):
            state = next(leaving)
            self.remove((state.entry_id, state.step))
            victims.append(state)
        return victims

    def pop(self) -> State:
        """Takes the least valuable state off the shelf, which must not be empty."""
        state = next(self._leaving(self._last))
        self.remove((state.entry_id, state.step))
        return state

    def _leaving(self, now: float) -> Iterator[State]:
        """The states from the least valuable on; each is removed before the next one is asked for."""
        while True:
            score, key = heapq.heappop(self._heap)
            state = self._states.get(key)
            if state is not None and self.policy.score(state) == score:
                yield state

    def _push(self, key: Key) -> None:
        heapq.heappush(self._heap, (self.score(key), key))
        if len(self._heap) > 64 + 4 * len(self._states):  # mostly outdated items
            self._heap = [(self.score(live), live) for live in self._states]
            heapq.heapify(self._heap)
