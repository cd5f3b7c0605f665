"""Contents of the cache: a store of latents and a window of images, each with its own budget.

The maintainer and the replay use the same decisions about finished images; only the maintainer writes them to the
catalog.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from services.cache_maintainer.eviction.scored import Offer, StateStore
from services.cache_maintainer.eviction.window import Window, last_that_fit
from shared.domain.types import PICTURE_STEP, State


class Taken(NamedTuple):
    """Decision about a batch of finished images."""

    kept: list[tuple[int, ...]]
    """Kept steps of each offer, ascending; PICTURE_STEP means the image."""
    victims: list[State]
    """States evicted for the batch, already removed from the stores."""


@dataclass(frozen=True)
class CacheContents:
    """State store of latents and window of images. `pictures` is None when no image may start another."""

    latents: StateStore
    pictures: Window | None
    max_bytes: int
    """Budget of the latents and the masks."""
    masks: MaskSizes = field(default_factory=lambda: MaskSizes())
    _weighed: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Entry → steps that the policy admitted, until the entry is settled."""

    @property
    def room(self) -> int:
        """Bytes that the latents may have: the budget without the masks."""
        return max(self.max_bytes - self.masks.total, 0)

    def take_in(self, offers: Sequence[Offer], now: float) -> Taken:
        """Decide which states of these offers are kept, and what is evicted: latents for latents, images for images.

        The policy first receives each offer's lookup and user, even for offers with nothing to keep. Retries of an
        insertion do not repeat this. The caller puts the states into the stores once their rows exist, then calls
        `settled` for each entry.
        """
        kept, count, size = [], 0, 0
        room = self.room
        for offer in fitting(offers, room):
            steps = self._let_in(offer)
            kept.append(steps)
            count, size = count + len(steps), size + offer.bytes_of(steps)
        victims = self.latents.make_room(count, size, room, now)
        if self.pictures is not None:
            coming = last_that_fit([offer.picture_bytes for offer in offers], self.pictures.limits)
            victims += self.pictures.make_room(len(coming), sum(coming.values()))
            kept = [(PICTURE_STEP, *steps) if place in coming else steps for place, steps in enumerate(kept)]
        return Taken(kept, victims)

    def _let_in(self, offer: Offer) -> tuple[int, ...]:
        before = self._weighed.get(offer.entry_id)
        if before is not None:  # in a larger batch, fewer steps may fit
            return offer.readable([step for step in before if step in offer.steps])
        self.latents.looked_up(offer.wishes, offer.at, offer.total, offer.pair)
        steps = self._weighed[offer.entry_id] = offer.readable(self.latents.admit(offer, self.room))
        return steps

    def settled(self, entry_id: str) -> None:
        """Clear the bookkeeping of an entry that is in the catalog, or never will be."""
        self._weighed.pop(entry_id, None)
        if not self.latents.alive(entry_id):
            self.latents.forget(entry_id)

    def only_waiting(self, entry_ids: Collection[str]) -> None:
        """Clear the bookkeeping of all other entries: they are in the catalog, or their jobs expired."""
        for entry_id in self._weighed.keys() - set(entry_ids):
            self.settled(entry_id)

    def make_room(self, now: float) -> list[State]:
        """Evict without inserting, after budgets were lowered."""
        victims = self.latents.make_room(0, 0, self.room, now)
        return victims if self.pictures is None else victims + self.pictures.make_room(0, 0)

    def put(self, state: State) -> None:
        if state.step != PICTURE_STEP:
            self.latents.insert(state)
        elif self.pictures is not None:
            self.pictures.insert(state)

    def take(self, state: State) -> None:
        self.of(state.step).remove((state.entry_id, state.step))

    def of(self, step: int) -> StateStore:
        """Return the store that holds states of this step."""
        return self.pictures.shelf if step == PICTURE_STEP and self.pictures is not None else self.latents

    def alive(self, entry_id: str) -> bool:
        """Return whether a job can start from any state of this entry."""
        return self.latents.alive(entry_id) or (self.pictures is not None and self.pictures.shelf.alive(entry_id))

    def score(self, state: State) -> float:
        """Return the policy's score of this state; the lowest score is evicted first."""
        shelf, key = self.of(state.step), (state.entry_id, state.step)
        return (shelf.score(key) if key in shelf else shelf.policy.score(state))[0]

    def use(self, entry_id: str, step: int, at: float) -> None:
        """Record that a job started from this state, or (step 0) started from the entry's image or returned it."""
        self.of(step).use((entry_id, step), at)


class MaskSizes:
    """Bytes of each entry's masks, and their sum."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        self.total = 0

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __contains__(self, entry_id: str) -> bool:
        return entry_id in self._of

    def put(self, entry_id: str, size: int) -> None:
        self.total += size - self._of.get(entry_id, 0)
        self._of[entry_id] = size

    def pop(self, entry_id: str) -> None:
        self.total -= self._of.pop(entry_id, 0)


def fitting(offers: Sequence[Offer], max_bytes: int) -> Sequence[Offer]:
    """Return the offers, reduced to the latents that an empty cache of `max_bytes` could hold.

    A batch larger than the budget keeps the latents that save the most steps. Images have their own budget.
    """
    total = 0
    for offer in offers:
        total += sum(offer.sizes)
    if total <= max_bytes:
        return offers
    room, kept = max_bytes, set[tuple[int, int]]()
    largest = sorted(
        (-step, size, place)
        for place, offer in enumerate(offers)
        for step, size in zip(offer.steps, offer.sizes, strict=True)
    )
    for minus_step, size, place in largest:
        if size <= room:
            room -= size
            kept.add((place, -minus_step))
    return [_only(offer, {step for one, step in kept if one == place}) for place, offer in enumerate(offers)]


def _only(offer: Offer, steps: set[int]) -> Offer:
    pairs = [(step, size) for step, size in zip(offer.steps, offer.sizes, strict=True) if step in steps]
    return replace(offer, steps=tuple(step for step, _ in pairs), sizes=tuple(size for _, size in pairs))
