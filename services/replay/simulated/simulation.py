"""Replay one policy over one trace with the serving code, without a denoiser."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from services.cache_maintainer.eviction.scored import Offer, Wish
from services.replay.policy import PolicySettings
from services.replay.simulated.decisions import Decisions, Looked, nothing_decided
from services.replay.simulated.own_steps import OwnSteps
from services.replay.simulated.pairs import Pair, pair_search
from services.replay.simulated.policy_inputs import UNLIMITED, empty_contents, table_and_neighbours
from services.replay.simulated.predicted import gate_of
from services.replay.simulated.state_sizes import StateSizes
from services.replay.traces.load import LiveRows, Load
from services.retriever.selection import (
    Ladder,
    Weighed,
    best,
    should_widen_search,
    trim_candidates,
    weigh,
)
from shared.domain.plan_rules import capture_steps
from shared.domain.types import NEEDS, PICTURE_STEP, State, Vector
from shared.models.k_table import KTable, raised

NOTHING = Weighed(0, 0.0, "", 0)
Row = tuple[Sequence[int], Sequence[float], bool]
"""A request's listed neighbours, their similarities, and whether the list was cut."""


class Seen(NamedTuple):
    """Result of a lookup among listed neighbours, or among all live entries."""

    chosen: Weighed | None
    thought_of: Sequence[Weighed]
    ended: bool = False
    """True if the search needed more entries than the list had."""


class Replay:
    """A cache that holds names instead of states.

    With `entries` the budget counts entries, each with all its states (MoDM §7.1, Fig. 9), instead of bytes.
    """

    def __init__(self, load: Load, policy: PolicySettings, room: int, *, entries: bool = False) -> None:
        self._load, self._policy = load, policy
        self.room = UNLIMITED if policy.unlimited else room
        """Room in bytes, or in entries."""
        self._pictures = policy.reuses != "latent"
        self._whole = entries and not self._pictures
        table, self._neighbours = table_and_neighbours(load, policy)
        self._table = raised(table, policy.raised_by)
        self._held = empty_contents(policy, self.room, whole=self._whole)
        self._shelf = self._held.of(PICTURE_STEP)
        """The store that this policy fills: of latents, or of images."""
        self._names = [f"{request:09d}" for request in range(len(load.trace))]
        self._users = list(map(str, load.trace.users.tolist()))
        self._texts = load.text_of.tolist()
        self._present: dict[int, list[int]] = {}
        """Steps of the states that each request's entry holds."""
        self._sizes = StateSizes(load, policy, entries=entries)
        self._live = LiveRows(load, any_group=policy.is_surrogate) if policy.lookup == "similar" else None
        self._of_text: dict[tuple[int, int, int], int] = {}
        """(text, group, T) → the latest live request with this text."""
        self._gate = gate_of(policy, self._vector, load.table)
        self._steps: list[int] = load.trace.asked(load.steps).tolist()
        """T of each request."""
        self._ladder = Ladder(self._table, load.steps)
        self._own = self._own_steps(self._table)
        """K tables and states by T; None: every request has the same T."""
        self._pairs = pair_search(load, policy)
        self._pair_ladder = Ladder(load.pair_table, load.steps)
        self._own_pairs = self._own_steps(load.pair_table)
        self.searched = 0
        self._captured: Callable[[int, int], tuple[int, ...]] = cache(self._steps_kept)

    def run(self, advance: Callable[[int], None] = lambda _: None) -> Decisions:
        """Decide every request in order and keep its states before the next; `advance` counts requests."""
        count = len(self._load.trace)
        made = nothing_decided(count)
        times = self._load.trace.arrival_s.tolist()
        for request, row in enumerate(self.rows()):
            looked = self.look(request, row, times[request])
            self.note(made, request, looked)
            made.evicted[request] = self.keep(request, looked, times[request])
            made.states[request], made.bytes[request] = self.holds
            if request % 1024 == 1023:
                advance(1024)
        advance(count % 1024)
        return replace(made, searched=self.searched)

    def rows(self) -> Iterator[Row]:
        """Yield each request's listed neighbours."""
        return self._neighbours.rows()

    def look(self, request: int, row: Row, now: float) -> Looked:
        """Choose the start of this request among the present states, and record its use."""
        chosen, thought_of, _ = self._start(request, row)
        predicted, score = (True, 1.0) if self._gate is None else self._gate.opens(self._group(request), request)
        found = chosen is not None
        if not predicted:
            chosen, thought_of = None, ()
        start, similarity, name, _ = chosen or NOTHING
        names = [name]
        if pair := self._pair(request, start):
            start, similarity = pair.start_step, pair.similarity
            names = [self._names[pair.object], self._names[pair.background]]
        for source in names if start else ():
            for key in self._shelf.read_with((source, self._shelved(int(source), request, start))):
                self._held.use(*key, now)
        return Looked(start, similarity, names[0], predicted, score, found, thought_of, *names[1:])

    def keep(self, request: int, looked: Looked, now: float) -> int:
        """Insert the states of the request's image, as the cache maintainer does; return how many were evicted."""
        name, image, total = self._names[request], self._sizes.image(request), self._steps[request]
        there = self._captured(looked.start_step, total)
        latents = () if self._pictures else there[-1:] if self._whole else there
        sizes, needs = self._sizes.latents(request, latents, total)
        if latents and self._pairs is not None and self._pairs.has(request):
            self._held.masks.put(name, self._sizes.mask(request))
        offer = Offer(
            name,
            self._users[request],
            looked.start_step,
            latents,
            tuple(sizes.values()),
            now,
            total,
            looked.thought_of,
            [Wish(one, looked.start_step, looked.start_step) for one in looked.pair],
            image if self._pictures and there else None,
            needs,
        )
        (steps,), victims = self._held.take_in((offer,), now)
        if victims:
            self._drop(victims)
        for step in steps:
            codec = f"{NEEDS}{needs[step]}" if step in needs else ""
            self._held.put(State(name, step, "", sizes.get(step, image), codec, "", 0, now, now))
        self._held.settled(name)
        if steps:
            self._appeared(request, there if self._pictures or self._whole else steps)
        else:
            self._held.masks.pop(name)
        return len(victims)

    def _shelved(self, source: int, request: int, start: int) -> int:
        """Return the source's own step of the state that starts `request` at `start`."""
        if self._pictures:
            return PICTURE_STEP
        return self._present[source][-1] if self._whole else start * self._steps[source] // self._steps[request]

    def _appeared(self, request: int, steps: Sequence[int]) -> None:
        """Make the request's entry available to lookups."""
        self._present[request] = list(steps)
        if self._live is not None:
            self._live.add(request)
        if self._pairs is not None:
            self._pairs.add(request)
        self._of_text[self._text(request)] = request
        if self._gate is not None:
            self._gate.came(self._group(request), self._names[request], request)

    def note(self, made: Decisions, request: int, looked: Looked) -> None:
        """Write one request's row of the decisions."""
        if looked.start_step:
            made.start_step[request], made.similarity[request] = looked.start_step, looked.similarity
            made.source[request] = int(looked.entry_id)
            made.second[request] = int(looked.second or -1)
        made.predicted[request], made.score[request] = looked.predicted, looked.score
        made.found[request] = looked.found

    @property
    def holds(self) -> tuple[int, int]:
        """Number of held states (or entries), and their bytes with those of the masks."""
        return len(self._shelf), self._shelf.bytes + self._held.masks.total

    def held(self) -> dict[str, list[int]]:
        """Return the steps of the states that each entry holds."""
        return {self._names[request]: list(steps) for request, steps in self._present.items()}

    def _start(self, request: int, row: Row) -> Seen:
        if self._policy.lookup == "none":
            return Seen(None, ())
        if self._policy.lookup == "text":
            return Seen(self._repeat(request), ())
        near, cosines, cut = row
        seen = self._weighed(request, zip(near, cosines, strict=True))
        beyond = cosines[-1] if cosines else 1.0  # upper limit for entries beyond the list; 1 if the list is empty
        if cut and seen.ended and self._wished(request, beyond) > (seen.chosen.start_step if seen.chosen else 0):
            self.searched += 1
            limit = max(self._policy.candidates, self._policy.further_candidates)
            seen = self._weighed(request, self._nearest(request, limit))
        return seen

    def _pair(self, request: int, above: int) -> Pair | None:
        """Return the pair that saves more steps than `above`; at equal steps the whole prompt is taken (§4.2.1)."""
        if self._pairs is None:
            return None
        ladder, present = (self._pair_ladder, self._present) if self._own_pairs is None else self._own_pairs.of(request)
        return self._pairs.best(ladder, request, present, above)

    def _weighed(self, request: int, near: Iterable[tuple[int, float]]) -> Seen:
        """Weigh the nearest live entries of `near`, most similar first; widen the search if they have holes (ADR
        10)."""
        limit, further, names = self._policy.candidates, self._policy.further_candidates, self._names
        ladder, present = (self._ladder, self._present) if self._own is None else self._own.of(request)
        left, weighed = iter(near), list[Weighed]()
        for other, cosine in left:
            steps = present.get(other)
            if steps is not None:
                weighed.append(weigh(ladder, names[other], cosine, steps))
                if len(weighed) == limit:
                    break
        if further <= limit or not should_widen_search(weighed, limit):
            return Seen(best(weighed), weighed, len(weighed) < limit)
        latest, ended = max(one.start_step for one in weighed), True
        for other, cosine in left:
            steps = present.get(other)
            if steps is None:
                continue
            one = weigh(ladder, names[other], cosine, steps)
            if one.allowed_step < latest or len(weighed) == further:
                ended = False  # no later entry allows a later start, or the limit is reached
                break
            weighed.append(one)
            latest = max(latest, one.start_step)
        chosen = best(weighed)
        return Seen(chosen, trim_candidates(weighed, limit, chosen), ended and len(weighed) < further)

    def _wished(self, request: int, similarity: float) -> int:
        ladder = self._ladder if self._own is None else self._own.of(request)[0]
        return ladder.wished(similarity)

    def _nearest(self, request: int, limit: int) -> list[tuple[int, float]]:
        assert self._live is not None
        pictures = self._load.pictures
        if not self._policy.is_surrogate or pictures is None:
            return self._live.nearest(request, limit, self._neighbours.floor)
        near = self._live.nearest(request, self._neighbours.indices.shape[1], pictures.text_floor)
        return pictures.best(request, near)[:limit]

    def _repeat(self, request: int) -> Weighed | None:
        """Return the stored image of the same text, as a start at the last step; None without one."""
        same = self._of_text.get(self._text(request))
        return None if same is None else Weighed(self._steps[request], 1.0, self._names[same], self._steps[request])

    def _vector(self, request: int) -> Vector:
        row: Vector = self._load.vectors[self._texts[request]]
        return row

    def _text(self, request: int) -> tuple[int, int, int]:
        return self._texts[request], self._group(request), self._steps[request]

    def _group(self, request: int) -> int:
        groups = self._load.group_of
        return -1 if groups is None else int(groups[request])

    def _own_steps(self, table: KTable) -> OwnSteps | None:
        if self._load.trace.steps is None:
            return None
        assert self._load.card is not None
        return OwnSteps(self._steps, self._load.card, table, self._present, pictures=self._pictures)

    def _steps_kept(self, start: int, total: int) -> tuple[int, ...]:
        """Return the steps of the states that are kept of an image with `total` steps that started at `start`."""
        if self._policy.reuses == "picture":
            return () if start else (total,)
        if self._policy.reuses == "refine":  # a finished image can start at any noise level
            return () if start and not self._policy.insert_on_hit else self._ladder.steps
        ks = self._policy.capture_steps
        return capture_steps(ks, total, start, insert_on_hit=self._policy.insert_on_hit)

    def _drop(self, victims: Sequence[State]) -> None:
        spent = []
        for victim in victims:
            request = int(victim.entry_id)
            left = self._present[request]
            if self._whole or self._pictures:
                left.clear()
            else:
                left.remove(victim.step)
            if not left:
                self._vanished(request)
                spent.append((self._group(request), victim.entry_id))
        if self._gate is not None:
            self._gate.left(spent)

    def _vanished(self, request: int) -> None:
        """Remove an entry without states from the lookups."""
        del self._present[request]
        self._held.masks.pop(self._names[request])
        if self._live is not None:
            self._live.remove(request)
        if self._pairs is not None:
            self._pairs.remove(request)
        if self._of_text.get(self._text(request)) == request:
            del self._of_text[self._text(request)]
