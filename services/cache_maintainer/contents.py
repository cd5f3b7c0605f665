"""All that the cache holds: latents on one shelf, the window of pictures beside it, each with its own budget; and what
becomes of finished pictures, decided alike for the maintainer, who writes it down, and for a replay."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from services.cache_maintainer.eviction.scored import Offer, StateStore
from services.cache_maintainer.eviction.window import Window, last_that_fit
from shared.domain.types import PICTURE_STEP, State


class Taken(NamedTuple):
    """What is decided about a batch of finished pictures."""

    kept: list[tuple[int, ...]]
    """Of each the steps whose states are kept, rising; PICTURE_STEP: its picture."""
    victims: list[State]
    """What leaves for them; off the shelves already."""


@dataclass(frozen=True)
class CacheContents:
    """`pictures` None: no picture starts another."""

    latents: StateStore
    pictures: Window | None
    max_bytes: int
    """Of the latents."""
    _weighed: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Entry → the steps of it that the policy let in, until it is settled."""

    def take_in(self, offers: Sequence[Offer], now: float) -> Taken:
        """Which states of these are kept, and what leaves for them, latents for latents and pictures for pictures.

        The policy first hears what was looked up for each, and who asked even where there is nothing to keep: once,
        however often an insertion is tried. Whoever asks puts the states on the shelves, once they are where they can
        be found, and says of each entry that it is settled.
        """
        kept, count, size = [], 0, 0
        for offer in fitting(offers, self.max_bytes):
            steps = self._let_in(offer)
            kept.append(steps)
            count, size = count + len(steps), size + offer.bytes_of(steps)
        victims = self.latents.make_room(count, size, self.max_bytes, now)
        if self.pictures is not None:
            coming = last_that_fit([offer.picture_bytes for offer in offers], self.pictures.limits)
            victims += self.pictures.make_room(len(coming), sum(coming.values()), now)
            kept = [(PICTURE_STEP, *steps) if place in coming else steps for place, steps in enumerate(kept)]
        return Taken(kept, victims)

    def _let_in(self, offer: Offer) -> tuple[int, ...]:
        before = self._weighed.get(offer.entry_id)
        if before is not None:  # of a larger batch fewer may fit now
            return tuple(step for step in before if step in offer.steps)
        self.latents.looked_up(offer.wishes, offer.at, offer.total)
        steps = self._weighed[offer.entry_id] = self.latents.admit(offer, self.max_bytes)
        return steps

    def settled(self, entry_id: str) -> None:
        """It is in the catalog, or never comes there."""
        self._weighed.pop(entry_id, None)
        if not self.latents.alive(entry_id):
            self.latents.forget(entry_id)

    def only_waiting(self, entry_ids: Collection[str]) -> None:
        """All others are in the catalog, or their jobs expired."""
        for entry_id in self._weighed.keys() - set(entry_ids):
            self.settled(entry_id)

    def make_room(self, now: float) -> list[State]:
        """What leaves although nothing comes: budgets were lowered, pictures grew old."""
        victims = self.latents.make_room(0, 0, self.max_bytes, now)
        return victims if self.pictures is None else victims + self.pictures.make_room(0, 0, now)

    def put(self, state: State) -> None:
        if state.step != PICTURE_STEP:
            self.latents.insert(state)
        elif self.pictures is not None:
            self.pictures.insert(state)

    def take(self, state: State) -> None:
        self.of(state.step).remove((state.entry_id, state.step))

    def of(self, step: int) -> StateStore:
        """The shelf on which states of this step are."""
        return self.pictures.shelf if step == PICTURE_STEP and self.pictures is not None else self.latents

    def alive(self, entry_id: str) -> bool:
        """Whether anything can be started from this entry."""
        return self.latents.alive(entry_id) or (self.pictures is not None and self.pictures.shelf.alive(entry_id))

    def score(self, state: State) -> float:
        """What its policy gives it; the lowest leaves first."""
        shelf, key = self.of(state.step), (state.entry_id, state.step)
        return (shelf.score(key) if key in shelf else shelf.policy.score(state))[0]

    def use(self, entry_id: str, step: int, at: float) -> None:
        """A picture started from this state, or (step 0) from the entry's picture, or was answered with it."""
        self.of(step).use((entry_id, step), at)


def fitting(offers: Sequence[Offer], max_bytes: int) -> Sequence[Offer]:
    """The offers with only as many latents as an empty cache of `max_bytes` could hold: a batch that is larger than
    the budget keeps the latents that save the most steps. Pictures have a budget of their own."""
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
