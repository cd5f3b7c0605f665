"""The state store that all policies share, and four policies over one incrementally maintained heap (NIRVANA §5.4)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

from services.cache_maintainer.eviction.states import Key, States
from shared.domain.types import State
from shared.models.k_table import IMAGE_STEPS

Score = tuple[float, ...]
"""Compared element by element; the state with the smallest score is evicted first."""


class Wished(Protocol):
    """A lookup's result for one entry: the step that its similarity allows, and the step available for the request."""

    @property
    def entry_id(self) -> str: ...
    @property
    def allowed_step(self) -> int: ...
    @property
    def start_step(self) -> int: ...
    @property
    def steps(self) -> int:
        """T of both; 0: that of the offer's own run."""
        ...


class Wish(NamedTuple):
    """A lookup's result for one entry, as a tuple; implements Wished."""

    entry_id: str
    allowed_step: int
    start_step: int
    steps: int = 0


@dataclass(slots=True)
class Offer:
    """A finished image whose states could be kept, its user, and the candidates of its lookup."""

    entry_id: str
    user: str
    """Empty for no particular user."""
    start_step: int
    """K from which the image started; 0 for noise."""
    steps: tuple[int, ...]
    """Steps of its latents, ascending."""
    sizes: tuple[int, ...]
    """Bytes of each latent; all about the same."""
    at: float
    total: int = 50
    """T, the number of steps of the whole run."""
    wishes: Sequence[Wished] = ()
    """Entries whose latents the lookup considered."""
    pair: Sequence[Wished] = ()
    """The two entries of the stitched start that was taken (FlexCache §4.2); empty for any other start."""
    picture_bytes: int | None = None
    """None if the image must not start others."""
    needs: Mapping[int, int] = field(default_factory=dict)
    """Step → step of the latent without which it cannot be read."""

    @property
    def state_bytes(self) -> int:
        """Bytes of the largest latent; of a run whose latents need another one, mean bytes: the base has most."""
        return -(-sum(self.sizes) // len(self.sizes)) if self.needs and self.sizes else max(self.sizes, default=0)

    def readable(self, steps: Sequence[int]) -> tuple[int, ...]:
        """Return those of the steps whose latents need none, or one of these steps."""
        return tuple(step for step in steps if self.needs.get(step, step) in steps)

    def bytes_of(self, steps: Sequence[int]) -> int:
        """Return the bytes of the latents at these steps."""
        if len(steps) == len(self.steps):
            return sum(self.sizes)
        return sum(size for step, size in zip(self.steps, self.sizes, strict=True) if step in steps)


class Policy(Protocol):
    """A pure scoring function for states."""

    name: ClassVar[str]

    def score(self, state: State) -> Score: ...


@dataclass(frozen=True, slots=True)
class Lcbfu:
    """Least Computationally Beneficial and Frequently Used: f·K, uses times the steps that each use saves.

    For an image, K is the largest number of steps that an image can save, 30 of 50. The paper does not specify the
    initial f, nor the order among equals. `initial_uses` is added to every f, because with 0 all new states would score
    0, for any K. Among equals, the longest unused is evicted first.
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
    """Least frequently used; among equals, the longest unused is evicted first."""

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
    """All live states, their total bytes, and a min-heap of their scores.

    A changed score pushes a new heap item. The old item is skipped when it reaches the top, because it no longer equals
    the state's score.
    """

    def __init__(self, policy: Policy, states: Iterable[State] = ()) -> None:
        self.policy = policy
        self.bytes = 0
        self._last = 0.0
        self._states = States()
        self._heap: list[tuple[Score, Key]] = []
        for state in states:
            self.insert(state)

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[State]:
        return iter(self._states)

    def __contains__(self, key: Key) -> bool:
        return key in self._states

    def get(self, key: Key) -> State | None:
        return self._states.get(key)

    def alive(self, entry_id: str) -> bool:
        """Return whether the entry has any state left."""
        return self._states.has(entry_id)

    def insert(self, state: State) -> None:
        """Add a state, or replace the state of the same entry and step."""
        key = (state.entry_id, state.step)
        if key in self._states:
            self.remove(key)
        self._states.put(state)
        self.bytes += state.bytes
        self._last = max(self._last, state.used_at)
        self._push(key)

    def use(self, key: Key, at: float) -> None:
        """Record that a job started from this state; ignore states that were evicted before."""
        state = self._states.get(key)
        if state is not None:
            self._states.put(state.used(at))
            self._last = max(self._last, at)
            self._push(key)

    def read_with(self, key: Key) -> list[Key]:
        """Return the states that a job reads to start from this one: the state, and the one that it needs."""
        state = self._states.get(key)
        return [key] if state is None or not state.needs else [key, (key[0], state.needs)]

    def lost_with(self, key: Key) -> list[State]:
        """Return the states that nothing can start from once this one is gone: the state, and those that need it."""
        state = self._states.get(key)
        return [] if state is None else [state, *(one for one in self._states.of(key[0]) if one.needs == key[1])]

    def remove(self, key: Key) -> None:
        state = self._states.pop(key)
        if state is not None:
            self.bytes -= state.bytes

    def score(self, key: Key) -> Score:
        return self.policy.score(self._states[key])

    def looked_up(self, wishes: Sequence[Wished], at: float, total: int = 50, pair: Sequence[Wished] = ()) -> None:
        """Receive the candidates of a lookup for a run of `total` steps, used or not, and the pair that was stitched.

        Most policies ignore them."""

    def admit(self, offer: Offer, max_bytes: int) -> tuple[int, ...]:
        """Return the steps worth inserting: by default, the largest ones that the whole budget could hold."""
        steps = offer.steps
        return steps[max(0, len(steps) - max_bytes // max(offer.state_bytes, 1)) :] if steps else steps

    def forget(self, entry_id: str) -> None:
        """Drop the records of an admitted entry that will have no states. Most policies keep no such records."""

    def make_room(self, incoming: int, incoming_bytes: int, max_bytes: int, now: float | None = None) -> list[State]:
        """Remove and return the states to evict before `incoming` states are inserted, least valuable first.

        If all fit, evict nothing. Otherwise evict as many states as are about to be inserted, and more until the bytes
        fit. NIRVANA §5.4 counts states; a byte budget must hold for states of any size. `now` is for policies that
        weigh how long a state was unused; None means the time of the last use.
        """
        victims: list[State] = []
        if self.bytes + incoming_bytes <= max_bytes:
            return victims
        leaving = self._leaving(self._last if now is None else now)
        while self._states and (len(victims) < incoming or self.bytes + incoming_bytes > max_bytes):
            victims += self._take(next(leaving))
        return victims

    def pop(self) -> State:
        """Remove and return the least valuable state. The store must not be empty."""
        return self._take(next(self._leaving(self._last)))[-1]

    def _take(self, state: State) -> list[State]:
        """Remove and return the state, after those that need it: a base has most bytes of its run (FlexCache §4.3)."""
        base, *others = self.lost_with((state.entry_id, state.step))
        for one in (*others, base):
            self.remove((one.entry_id, one.step))
        return [*others, base]

    def _leaving(self, now: float) -> Iterator[State]:
        """Yield the states, least valuable first; the caller removes each before it requests the next."""
        while True:
            score, key = heapq.heappop(self._heap)
            state = self._states.get(key)
            if state is not None and self.policy.score(state) == score:
                yield state

    def _push(self, key: Key) -> None:
        heapq.heappush(self._heap, (self.score(key), key))
        if len(self._heap) > 64 + 4 * len(self._states):  # mostly outdated items
            keys = [(live.entry_id, live.step) for live in self._states]
            self._heap = [(self.score(live), live) for live in keys]
            heapq.heapify(self._heap)
