"""All that the cache holds: latents on one shelf, the window of pictures beside it, each with its own budget."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from services.cache_maintainer.admission import offer_of, wishes_of
from services.cache_maintainer.eviction import Shelf
from services.cache_maintainer.window import Window
from shared.types import PICTURE_STEP, Entry, Job, State


@dataclass(frozen=True)
class Holdings:
    """`pictures` None: no picture starts another."""

    latents: Shelf
    pictures: Window | None
    max_bytes: int
    """Of the latents."""
    _weighed: dict[str, frozenset[int]] = field(default_factory=dict)
    """Entry → the steps of it that the policy let in, until it is settled."""

    def make_room(self, now: float, incoming: Sequence[State] = ()) -> list[State]:
        """What leaves before these come, latents for latents and pictures for pictures."""
        latents = [state for state in incoming if not state.is_picture]
        victims = self.latents.make_room(len(latents), sum(state.bytes for state in latents), self.max_bytes, now)
        if self.pictures is not None:
            coming = [state for state in incoming if state.is_picture]
            victims += self.pictures.make_room(len(coming), sum(state.bytes for state in coming), now)
        return victims

    def worth_keeping(self, entry: Entry, job: Job, at: float) -> Entry:
        """The entry with those of its latents that the policy lets in, which first hears what was looked up for it, and
        who asked even where there are none: once, however often the entry's insertion is tried."""
        if entry.id not in self._weighed:
            self.latents.looked_up(wishes_of(job), at)
            self._weighed[entry.id] = frozenset(self.latents.admit(offer_of(entry, job, at), self.max_bytes))
        kept = self._weighed[entry.id]
        return replace(entry, states=tuple(one for one in entry.states if one.is_picture or one.step in kept))

    def settled(self, entry_id: str) -> None:
        """It is in the catalog, or never comes there."""
        self._weighed.pop(entry_id, None)
        if not self.latents.alive(entry_id):
            self.latents.forget(entry_id)

    def only_waiting(self, entry_ids: Collection[str]) -> None:
        """All others are in the catalog, or their jobs expired."""
        for entry_id in self._weighed.keys() - set(entry_ids):
            self.settled(entry_id)

    def put(self, state: State) -> None:
        if not state.is_picture:
            self.latents.insert(state)
        elif self.pictures is not None:
            self.pictures.insert(state)

    def take(self, state: State) -> None:
        self.of(state.step).remove((state.entry_id, state.step))

    def of(self, step: int) -> Shelf:
        """The shelf on which states of this step are."""
        return self.pictures.shelf if step == PICTURE_STEP and self.pictures is not None else self.latents

    def alive(self, entry_id: str) -> bool:
        """Whether anything can be started from this entry."""
        return self.latents.alive(entry_id) or (self.pictures is not None and self.pictures.shelf.alive(entry_id))

    def score(self, state: State) -> float:
        """What its policy gives it; the lowest leaves first."""
        return self.of(state.step).policy.score(state)[0]

    def use(self, entry_id: str, step: int, at: float) -> None:
        """A picture started from this state, or (step 0) from the entry's picture, or was answered with it."""
        self.of(step).use((entry_id, step), at)
