"""The `afterimage` policy: a state is kept for the steps it is expected to save per byte (design §4)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from services.cache_maintainer.eviction.demand import Demand, Floats, Ints
from services.cache_maintainer.eviction.entries import Entries
from services.cache_maintainer.eviction.levels import OF, beside, of_50
from services.cache_maintainer.eviction.scored import Key, Offer, Score, StateStore, Wish, Wished
from services.cache_maintainer.eviction.users import START_EMA_EDGES, Users
from shared.domain.types import State

RANKS = (0, 1, 2, 3, 3, 4, 4, 4, 4, 5)
"""Rank by how many newer entries the user has, counted up to nine."""
STARTS, USES, START_EMA_BINS = 3, 3, 4
"""An entry was drawn from noise, from a small or from a large K; was used never, once, more often; and its user's
recent pictures started, on average, from a K in one of four ranges."""
START_EMA_WEIGHT = 0.3
"""Of the last picture in its user's average."""
FIT_EVERY = 2000
"""Lookups between two fits, once so many were heard."""
FIRST_FIT = 200
"""Lookups before the first fit; from then on each has heard twice what the one before had, up to FIT_EVERY."""
AT_ONCE = 0.02
"""Share of the states that are put in line to leave each time the line is empty."""
LEAST_WORTH = 1.3
"""A new state must be expected to save so many times what the last one that left was: it may still be wrong."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The policy's name; what a state is worth depends on the others and is the shelf's to say."""

    name: ClassVar[str] = "afterimage"

    def score(self, state: State) -> Score:
        return (state.step / max(state.bytes, 1),)


class ExpectedStateStore(StateStore):
    """Worths of all states are computed together, now and then; the least are put in line and leave as room is needed.

    Similar entries share the requests they could serve: a lookup counts for an entry only as far as no other one has a
    state as good, so that what a newer near-duplicate covers is soon worth little.
    """

    def __init__(self, levels: Sequence[int], states: Iterable[State] = (), *, whole: bool = False) -> None:
        """`whole`: an entry is one thing that holds every level, shelved as its highest (equal entries, MoDM §7.1)."""
        self.demand = Demand(levels, ranks=max(RANKS) + 1, kinds_per_rank=STARTS * USES * START_EMA_BINS, whole=whole)
        self._whole = whole
        self._entries, self._users = Entries(), Users()
        self._steps: dict[str, dict[int, list[int]]] = {}
        """Entry → place of a level → its states' steps, of entries whose steps are not the levels themselves."""
        self._slot: dict[str, int] = {}
        self._below, self._above = beside(len(self.demand.levels))
        self._line: Iterator[tuple[str, int, float]] = iter(())
        self._least = 0.0
        """Worth per byte of what left last."""
        self._looked, self._fit_at = 0, FIRST_FIT
        self._counted_at: float | None = None
        """Until when the entries' time was counted; None before anything was heard."""
        super().__init__(Expected(), states)

    # ---- what is heard ----

    def looked_up(self, wishes: Sequence[Wished], at: float, total: int = OF) -> None:
        if total != OF:
            wishes = [
                Wish(one.entry_id, of_50(one.allowed_step, total), of_50(one.start_step, total)) for one in wishes
            ]
        if self._counted_at is None:
            self._counted_at = at
        best, second = _two_best(wishes)
        chosen = next((wish.entry_id for wish in wishes if 0 < wish.start_step == best), "")
        for wish in wishes:
            slot = self._slot.get(wish.entry_id)
            otherwise = second if wish.start_step == best else best
            could = wish.start_step if self._whole else wish.allowed_step  # a whole entry has what it has
            if slot is not None and could > otherwise:
                silent_s = at - self._entries.used_at[slot]
                self.demand.asked(self._kind(slot), silent_s, could, otherwise)
        if chosen in self._slot:  # counted here and not when it is used: what was asked of it was asked before
            slot = self._slot[chosen]
            self._entries.uses[slot] += 1
            self._entries.used_at[slot] = max(at, self._entries.used_at[slot])
        self._looked += 1
        fits = self._looked == self._fit_at
        if fits:
            self._fit_at = _next_fit(self._looked)
            self._count_time(at)
            self.demand.fit()
        if fits or self._looked % self._batch() == 0:
            self._line_up(at)

    def admit(self, offer: Offer, max_bytes: int) -> tuple[int, ...]:
        """Fewer levels where room is dear: a state that would be worth less than what leaves for it is left out."""
        user = self._users.of(offer.user or _nobody(offer.entry_id))
        highest = self.demand.levels[-1]
        start_ema = min(offer.start_step * OF / offer.total / highest, 1.0)
        self._users.start_ema[user] += START_EMA_WEIGHT * (start_ema - self._users.start_ema[user])
        steps = super().admit(offer, max_bytes)
        if self.bytes + len(steps) * offer.state_bytes > max_bytes:
            if not self.demand.fits:
                self._count_time(offer.at)
                self.demand.fit()
            steps = self._worth_it(offer, user, steps)
        if steps and offer.entry_id not in self._slot:
            self._open(offer, user)
        elif offer.entry_id not in self._slot:
            self._users.forget(_nobody(offer.entry_id))
        return steps

    def insert(self, state: State) -> None:
        super().insert(state)
        slot = self._slot.get(state.entry_id)
        if slot is None:  # nobody said whose it is
            offer = Offer(state.entry_id, "", 0, (state.step,), (state.bytes,), state.created_at)
            slot = self._open(offer, self._users.of(_nobody(state.entry_id)))
        self._entries.used_at[slot] = max(self._entries.used_at[slot], state.used_at)
        place = self._place_of(state.step, int(self._entries.total[slot]))
        self._entries.held[slot] |= 1 << place
        if state.step != self.demand.levels[place]:
            of_entry = self._steps.setdefault(state.entry_id, {})
            of_entry.setdefault(place, []).append(state.step)

    def remove(self, key: Key) -> None:
        known = key in self
        super().remove(key)
        if not known:
            return
        slot = self._slot[key[0]]
        place = self._place_of(key[1], int(self._entries.total[slot]))
        if key[0] in self._steps and key[1] in self._steps[key[0]].get(place, ()):
            self._steps[key[0]][place].remove(key[1])
        if not any((key[0], step) in self for step in self._steps_at(key[0], place)):
            self._entries.held[slot] &= ~(1 << place)
        if not self.alive(key[0]):
            self.forget(key[0])

    def forget(self, entry_id: str) -> None:
        slot = self._slot.pop(entry_id, None)
        if slot is not None:
            self._steps.pop(entry_id, None)
            self._users.entries[self._entries.user[slot]].remove(slot)
            self._users.forget(_nobody(entry_id))
            self._entries.give_back(slot)

    def _open(self, offer: Offer, user: int) -> int:
        slot = self._slot[offer.entry_id] = self._entries.take(offer.entry_id)
        entries = self._entries
        entries.user[slot], entries.bytes[slot] = user, max(offer.state_bytes, 1)
        entries.total[slot], entries.used_at[slot] = max(offer.total, 1), offer.at
        entries.start[slot] = self._begun(offer)
        mine = self._users.entries[user]
        for older in mine[1 - len(RANKS) :]:
            entries.newer[older] = min(entries.newer[older] + 1, len(RANKS) - 1)
        mine.append(slot)
        return slot

    # ---- what leaves ----

    def score(self, key: Key) -> Score:
        """Return (worth per byte,) at the time of the last use: steps saved a second. 0 before the first fit."""
        slot = self._slot[key[0]]
        place = self._place_of(key[1], int(self._entries.total[slot]))
        held, silent_s = self._entries.held[slot], max(0.0, self._last - self._entries.used_at[slot])
        below, above = int(self._below[held, place]), int(self._above[held, place])
        worth = self.demand.worth_of(self._kind(slot), silent_s, place, below, above)
        return (worth / int(self._entries.bytes[slot]),)

    def _push(self, key: Key) -> None:
        """Nothing is kept in order: worths change all the time."""

    def _leaving(self, now: float) -> Iterator[State]:
        while True:
            for name, place, worth in self._line:
                for step in self._steps_at(name, place):
                    state = self._states.get((name, step))
                    if state is not None:
                        self._least = worth
                        yield state
            self._line_up(now)

    def _line_up(self, now: float) -> None:
        """Again now and then, whether or not room was needed: what was dear an hour ago keeps nobody out for ever."""
        self._count_time(now)
        if len(self):  # entries of a batch are opened before their states come
            line = self._least_worth(now)
            self._line, self._least = iter(line), line[0][2]

    def _least_worth(self, now: float) -> list[tuple[str, int, float]]:
        """(entry, level, worth per byte) of the next ones to leave, the least first."""
        slots, kinds, silent_s = self._live(now)
        held, count = self._entries.held[slots], len(self.demand.levels)
        worths = np.full((len(slots), count), np.inf)
        for place in range(count):
            has = np.flatnonzero(held >> place & 1)
            below, above = self._below[held[has], place], self._above[held[has], place]
            worths[has, place] = self.demand.worth(kinds[has], silent_s[has], place, below, above)
        flat = (worths / self._entries.bytes[slots][:, None]).ravel()
        batch = min(self._batch(), len(self))
        chosen = np.argpartition(flat, batch - 1)[:batch]
        chosen = chosen[np.argsort(flat[chosen], kind="stable")]
        names = self._entries.names
        return [(names[slots[one // count]], int(one % count), float(flat[one])) for one in chosen.tolist()]

    def _worth_it(self, offer: Offer, user: int, steps: tuple[int, ...]) -> tuple[int, ...]:
        kind = self._kind_of(0, self._begun(offer), 0, user)
        left, least = list(steps), LEAST_WORTH * self._least * offer.state_bytes
        while left:
            places = [self._place_of(step, offer.total) for step in left]
            held = sum(1 << place for place in set(places))
            worths = [
                self.demand.worth_of(kind, 0.0, place, int(self._below[held, place]), int(self._above[held, place]))
                for place in places
            ]
            worst = min(range(len(left)), key=worths.__getitem__)
            if worths[worst] >= least:
                break
            del left[worst]
        return tuple(left)

    # ---- kinds and times ----

    def _kind(self, slot: int) -> int:
        entries = self._entries
        return self._kind_of(
            int(entries.newer[slot]), int(entries.start[slot]), int(entries.uses[slot]), int(entries.user[slot])
        )

    def _kind_of(self, newer: int, start: int, uses: int, user: int) -> int:
        start_ema = bisect_right(START_EMA_EDGES, self._users.start_ema[user])
        return ((RANKS[newer] * STARTS + start) * USES + min(uses, USES - 1)) * START_EMA_BINS + start_ema

    def _live(self, now: float) -> tuple[Ints, Ints, Floats]:
        """Slots of the live entries, their kinds, and the seconds since each was last used."""
        entries = self._entries
        slots = np.fromiter(self._slot.values(), np.int64, len(self._slot))
        users = entries.user[slots]
        start_emas = np.searchsorted(START_EMA_EDGES, self._users.start_ema[users], side="right")
        kinds = np.array(RANKS)[entries.newer[slots]] * STARTS + entries.start[slots]
        kinds = (kinds * USES + np.minimum(entries.uses[slots], USES - 1)) * START_EMA_BINS + start_emas
        return slots, kinds, now - entries.used_at[slots]

    def _count_time(self, now: float) -> None:
        if self._slot and self._counted_at is not None and now > self._counted_at:
            _, kinds, silent_s = self._live(now)
            self.demand.waited(kinds, silent_s, now - self._counted_at)
        self._counted_at = now

    def _batch(self) -> int:
        return max(64, int(AT_ONCE * len(self)))

    def _place_of(self, step: int, total: int) -> int:
        """Of the level that this step of a run of `total` was kept for."""
        return max(self.demand.place(of_50(step, total)) - 1, 0)

    def _steps_at(self, name: str, place: int) -> Sequence[int]:
        """The steps whose states an entry may have at the place of a level: of 20 steps, 10 stand at that of 25."""
        level = self.demand.levels[place]
        odd = self._steps.get(name)
        if odd is None:
            return (level,)
        others = tuple(odd.get(place, ()))
        own = self._place_of(level, int(self._entries.total[self._slot[name]])) == place
        return (level, *others) if own else others

    def _begun(self, offer: Offer) -> int:
        """From noise, from a small K, or from one in the upper two fifths."""
        if offer.start_step == 0:
            return 0
        return 1 if 5 * of_50(offer.start_step, offer.total) <= 3 * self.demand.levels[-1] else 2


def _nobody(entry_id: str) -> tuple[str]:
    """The name of whoever asked for an entry of which nobody said whose it is: no user's."""
    return (entry_id,)


def _next_fit(looked: int) -> int:
    """The lookup after which the next fit is due."""
    return min(2 * looked, (looked // FIT_EVERY + 1) * FIT_EVERY)


def _two_best(wishes: Sequence[Wished]) -> tuple[int, int]:
    """The largest K that is there, and the largest of another entry."""
    best = second = 0
    for wish in wishes:
        if wish.start_step >= best:
            best, second = wish.start_step, best
        elif wish.start_step > second:
            second = wish.start_step
    return best, second
