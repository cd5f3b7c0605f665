"""The `afterimage` policy: evicts states with the fewest expected saved steps per byte.

The design is in docs/architecture.md, Planning.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from services.cache_maintainer.eviction.demand import Demand, Floats, Ints
from services.cache_maintainer.eviction.entries import Entries
from services.cache_maintainer.eviction.levels import OF, beside, of_50
from services.cache_maintainer.eviction.scored import Offer, Score, StateStore, Wish, Wished
from services.cache_maintainer.eviction.states import Key
from services.cache_maintainer.eviction.users import START_EMA_EDGES, Users
from shared.domain.types import State

RANKS = (0, 1, 2, 3, 3, 4, 4, 4, 4, 5)
"""Rank of an entry by how many newer entries its user has, counted up to nine."""
STARTS, USES, START_EMA_BINS = 3, 3, 4
"""Classes of entries. STARTS: generated from noise, a small K or a large K. USES: never, once, more often.

START_EMA_BINS: the average start K of the user's recent images falls into one of four ranges.
"""
START_EMA_WEIGHT = 0.3
"""Weight of the last image in its user's average."""
FIT_EVERY = 2000
"""Largest number of lookups between two fits."""
FIRST_FIT = 200
"""Lookups before the first fit. The count doubles from fit to fit, up to FIT_EVERY between two fits."""
AT_ONCE = 0.02
"""Share of the states that are queued for eviction each time the queue is empty."""
LEAST_WORTH = 1.3
"""Minimum ratio of a new state's expected savings to those of the last evicted state: estimates can be wrong."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Placeholder with the policy's name: ExpectedStateStore computes the score, which depends on other states, too."""

    name: ClassVar[str] = "afterimage"

    def score(self, state: State) -> Score:
        return (state.step / max(state.bytes, 1),)


class ExpectedStateStore(StateStore):
    """Computes the worth of all states together, periodically, and evicts from a queue of the least valuable ones.

    Similar entries share the requests they could serve. A lookup counts for an entry only as far as no other entry has
    a state as good. A state that a newer near-duplicate covers therefore soon loses its worth.
    """

    def __init__(self, levels: Sequence[int], states: Iterable[State] = (), *, whole: bool = False) -> None:
        """`whole`: an entry holds every level at once and is stored as its highest level (equal entries, MoDM §7.1)."""
        self.demand = Demand(levels, ranks=max(RANKS) + 1, kinds_per_rank=STARTS * USES * START_EMA_BINS, whole=whole)
        self._whole = whole
        self._entries, self._users = Entries(), Users()
        self._steps: dict[str, dict[int, list[int]]] = {}
        """Entry → level index → its states' steps, for entries whose steps are not the levels themselves."""
        self._slot: dict[str, int] = {}
        self._below, self._above = beside(len(self.demand.levels))
        self._line: Iterator[tuple[str, int, float]] = iter(())
        self._least = 0.0
        """Worth per byte of the last evicted state."""
        self._looked, self._fit_at = 0, FIRST_FIT
        self._counted_at: float | None = None
        """Time up to which the entries' presence was counted; None before the first lookup."""
        super().__init__(Expected(), states)

    # ---- input ----

    def looked_up(self, wishes: Sequence[Wished], at: float, total: int = OF, pair: Sequence[Wished] = ()) -> None:
        wishes, pair = _of_50_steps(wishes, total), _of_50_steps(pair, total)
        if self._counted_at is None:
            self._counted_at = at
        best, second = _two_best(wishes)
        together = min((one.start_step for one in pair), default=0)
        for wish in wishes:
            could = wish.start_step if self._whole else wish.allowed_step  # a whole entry offers only what it holds
            self._asked(wish.entry_id, at, could, max(together, second if wish.start_step == best else best))
        for one in pair:  # without either, the whole prompt's best start would have been taken
            self._asked(one.entry_id, at, together, best)
        # a use counts now, not at StateUsed; this lookup was counted above under the entry's previous class
        chosen = [one.entry_id for one in pair] or [one.entry_id for one in wishes if 0 < one.start_step == best][:1]
        for slot in {self._slot[name] for name in chosen if name in self._slot}:
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

    def _asked(self, entry_id: str, at: float, could: int, otherwise: int) -> None:
        """Count a request that could start at K `could` from this entry, and at `otherwise` without it."""
        slot = self._slot.get(entry_id)
        if slot is not None and could > otherwise:
            self.demand.asked(self._kind(slot), at - self._entries.used_at[slot], could, otherwise)

    def admit(self, offer: Offer, max_bytes: int) -> tuple[int, ...]:
        """Return the steps worth inserting: a new state must be worth more than the states evicted for it."""
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
        if slot is None:  # no admission: the user is unknown
            offer = Offer(state.entry_id, "", 0, (state.step,), (state.bytes,), state.created_at)
            slot = self._open(offer, self._users.of(_nobody(state.entry_id)))
        if state.used_at > self._entries.used_at[slot]:
            self._entries.used_at[slot] = state.used_at
        place = self._place_of(state.step, int(self._entries.total[slot]))
        self._entries.held[slot] |= 1 << place
        if state.needs:
            self._entries.base[slot] = 1 + self._place_of(state.needs, int(self._entries.total[slot]))
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
        if not any(state.needs for state in self._states.of(key[0])):
            self._entries.base[slot] = 0
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

    # ---- eviction ----

    def score(self, key: Key) -> Score:
        """Return (worth per byte,) at the time of the last use, in steps saved per second. 0 before the first fit."""
        slot = self._slot[key[0]]
        place = self._place_of(key[1], int(self._entries.total[slot]))
        held, silent_s = self._entries.held[slot], max(0.0, self._last - self._entries.used_at[slot])
        below, above = int(self._below[held, place]), int(self._above[held, place])
        worth = self.demand.worth_of(self._kind(slot), silent_s, place, below, above)
        return (worth / int(self._entries.bytes[slot]),)

    def _push(self, key: Key) -> None:
        """Do nothing: worths change all the time, so no order is kept."""

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
        """Recompute the eviction queue, also without evictions, so that an old threshold does not keep states out."""
        self._count_time(now)
        if len(self):  # entries of a batch are opened before their states arrive
            line = self._least_worth(now)
            self._line, self._least = iter(line), line[0][2]

    def _least_worth(self, now: float) -> list[tuple[str, int, float]]:
        """Return (entry, level index, worth per byte) of the next states to evict, least valuable first."""
        slots, kinds, silent_s = self._live(now)
        held, count = self._entries.held[slots], len(self.demand.levels)
        worths = np.full((len(slots), count), np.inf)
        for place in range(count):
            has = np.flatnonzero(held >> place & 1)
            below, above = self._below[held[has], place], self._above[held[has], place]
            worths[has, place] = self.demand.worth(kinds[has], silent_s[has], place, below, above)
        base = self._entries.base[slots]
        runs = np.flatnonzero((base > 0) & (held >> np.maximum(base - 1, 0) & 1 == 1))
        means = np.ma.masked_invalid(worths[runs]).mean(axis=1)  # states that need a base leave with it: one worth
        worths[runs] = np.inf
        worths[runs, base[runs] - 1] = means
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
            if offer.needs:  # all or none: a base has most bytes of its run
                return steps if sum(worths) >= least * len(left) else ()
            if worths[worst] >= least:
                break
            del left[worst]
        return tuple(left)

    # ---- classes and times ----

    def _kind(self, slot: int) -> int:
        entries = self._entries
        return self._kind_of(
            int(entries.newer[slot]), int(entries.start[slot]), int(entries.uses[slot]), int(entries.user[slot])
        )

    def _kind_of(self, newer: int, start: int, uses: int, user: int) -> int:
        start_ema = bisect_right(START_EMA_EDGES, self._users.start_ema[user])
        return ((RANKS[newer] * STARTS + start) * USES + min(uses, USES - 1)) * START_EMA_BINS + start_ema

    def _live(self, now: float) -> tuple[Ints, Ints, Floats]:
        """Return the slots of the live entries, their classes, and the seconds since each was last used."""
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
        """Return the index of the level for which this step of a run of `total` steps was kept."""
        return max(self.demand.place(of_50(step, total)) - 1, 0)

    def _steps_at(self, name: str, place: int) -> Sequence[int]:
        """Return the steps that an entry may hold at this level index: in a run of 20 steps, step 10 is at level 25."""
        level = self.demand.levels[place]
        odd = self._steps.get(name)
        if odd is None:
            return (level,)
        others = tuple(odd.get(place, ()))
        own = self._place_of(level, int(self._entries.total[self._slot[name]])) == place
        return (level, *others) if own else others

    def _begun(self, offer: Offer) -> int:
        """Return the start class: 0 for noise, 1 for a small K, 2 for a K in the upper two fifths."""
        if offer.start_step == 0:
            return 0
        return 1 if 5 * of_50(offer.start_step, offer.total) <= 3 * self.demand.levels[-1] else 2


def _nobody(entry_id: str) -> tuple[str]:
    """Return the stand-in user name of an entry without a user; no real user has this name."""
    return (entry_id,)


def _next_fit(looked: int) -> int:
    """Return the lookup count at which the next fit is due."""
    return min(2 * looked, (looked // FIT_EVERY + 1) * FIT_EVERY)


def _of_50_steps(wishes: Sequence[Wished], total: int) -> Sequence[Wished]:
    if total == OF and all(one.steps in (0, OF) for one in wishes):
        return wishes
    return [
        Wish(one.entry_id, *(of_50(step, one.steps or total) for step in (one.allowed_step, one.start_step)))
        for one in wishes
    ]


def _two_best(wishes: Sequence[Wished]) -> tuple[int, int]:
    """Return the largest available K, and the largest K of another entry."""
    best = second = 0
    for wish in wishes:
        if wish.start_step >= best:
            best, second = wish.start_step, best
        elif wish.start_step > second:
            second = wish.start_step
    return best, second
