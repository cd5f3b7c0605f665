"""One policy over one trace on decisions alone: the serving code decides, time and denoiser are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from services.cache_maintainer.eviction import Offer, Shelf, Wish
from services.cache_maintainer.shelves import SHELVES
from services.replay.encoders import Rows
from services.replay.neighbours import Neighbours, similarity
from services.replay.policy import CODEC_SHARE, PolicySettings
from services.replay.predicted import Gate
from services.replay.trace import Trace
from services.retriever.selection import Ladder, Weighed, captured, preference, scaled, weigh
from shared.models.k_table import KTable, Level
from shared.types import State, Vector

UNLIMITED = 2**62
NOTHING = Weighed(0, 0.0, "", 0)


@dataclass(frozen=True)
class Load:
    """What every policy is offered alike."""

    trace: Trace
    vectors: Rows
    """One unit row per text."""
    text_of: npt.NDArray[np.int64]
    """(requests,): each one's row of `vectors`."""
    neighbours: Neighbours
    table: KTable
    state_bytes: npt.NDArray[np.int64]
    """(requests,): what one state of each takes."""
    group_of: npt.NDArray[np.int64] | None = None
    """(requests,): only a request of the same group is compatible; None: all are."""
    steps: int = 50


@dataclass(frozen=True)
class Decisions:
    """What was decided for each request, in order."""

    start_step: npt.NDArray[np.int16]
    """K of T; T for a picture handed out as it is."""
    source: npt.NDArray[np.int32]
    """The request whose state or picture it started from; −1 from noise."""
    similarity: npt.NDArray[np.float32]
    evicted: npt.NDArray[np.int32]
    """States that left for this request's."""
    states: npt.NDArray[np.int32]
    """States held afterwards."""
    bytes: npt.NDArray[np.int64]
    predicted: npt.NDArray[np.bool_]
    """Whether the match predictor said that a lookup is worth it; all true where none is asked."""
    found: npt.NDArray[np.bool_]
    """Whether a lookup would have found a state to start from."""
    searched: int = 0
    """Requests whose listed neighbours did not decide, so that all live entries were compared."""


class Decided(NamedTuple):
    """One request's decision."""

    start_step: int
    similarity: float
    entry_id: str
    evicted: int
    predicted: bool
    found: bool


class LiveRows:
    """The live entries' vectors in one matrix, for the searches that the neighbour lists cannot answer."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._rows = np.empty((1024, load.vectors.shape[1]), np.float32)
        self._requests = np.empty(1024, np.int64)
        self._place: dict[int, int] = {}

    def add(self, request: int) -> None:
        place = len(self._place)
        if place == len(self._rows):
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
            self._requests = np.concatenate([self._requests, np.empty_like(self._requests)])
        self._place[request] = place
        self._rows[place] = self._load.vectors[self._load.text_of[request]]
        self._requests[place] = request

    def remove(self, request: int) -> None:
        place, last = self._place.pop(request), len(self._place)
        if place != last:
            moved = int(self._requests[last])
            self._rows[place], self._requests[place] = self._rows[last], moved
            self._place[moved] = place

    def nearest(self, request: int, limit: int, floor: float) -> list[tuple[int, float]]:
        """(request, cosine) of the nearest live entries above the floor, best first, equal ones the latest first."""
        requests = self._requests[: len(self._place)]
        scores = similarity(self._rows[: len(self._place)], self._load.vectors[self._load.text_of[request]])
        kept = scores > floor
        if self._load.group_of is not None:
            kept &= self._load.group_of[requests] == self._load.group_of[request]
        requests, scores = requests[kept], scores[kept]
        order = np.lexsort((-requests, -scores))[:limit]
        return list(zip(requests[order].tolist(), scores[order].tolist(), strict=True))


class Replay:
    """A cache that holds nothing but the names of states."""

    def __init__(self, load: Load, policy: PolicySettings, max_bytes: int) -> None:
        self._load, self._policy = load, policy
        self._max_bytes = UNLIMITED if policy.unlimited else max_bytes
        levels = scaled(policy.capture_steps, load.steps) or (load.steps,)
        self._shelf: Shelf = SHELVES[policy.evict](policy.initial_uses, (), levels)
        self._names = [f"{request:09d}" for request in range(len(load.trace))]
        self._present: dict[int, list[int]] = {}
        share = CODEC_SHARE[policy.state_codec]
        self._state_bytes = [max(1, round(size * share)) for size in load.state_bytes.tolist()]
        self._live = LiveRows(load)
        self._of_text: dict[tuple[int, int], int] = {}
        """(text, group) → the latest live request for it."""
        self._gate = Gate(self._vector, policy.refit_requests) if policy.predictor == "svm" else None
        self._ladder = Ladder(_table(load, policy), load.steps)
        self.searched = 0
        self._captured: Callable[[int], tuple[int, ...]] = cache(self._steps_kept)

    def run(self, advance: Callable[[int], None] = lambda _: None) -> Decisions:
        """Every request in order; `advance` hears of every 1,024."""
        count = len(self._load.trace)
        made = Decisions(
            np.zeros(count, np.int16), np.full(count, -1, np.int32), np.zeros(count, np.float32),
            np.zeros(count, np.int32), np.zeros(count, np.int32), np.zeros(count, np.int64),
            np.ones(count, np.bool_), np.zeros(count, np.bool_),
        )  # fmt: skip
        for request, one in enumerate(self.decided()):
            if one.start_step:
                made.start_step[request], made.similarity[request] = one.start_step, one.similarity
                made.source[request] = int(one.entry_id)
            made.predicted[request], made.found[request] = one.predicted, one.found
            made.evicted[request] = one.evicted
            made.states[request], made.bytes[request] = len(self._shelf), self._shelf.bytes
            if request % 1024 == 1023:
                advance(1024)
        advance(count % 1024)
        return replace(made, searched=self.searched)

    def decided(self) -> Iterator[Decided]:
        """Each request's decision, once the cache has taken in what it leaves."""
        times = self._load.trace.arrival_s.tolist()
        users = list(map(str, self._load.trace.users.tolist()))
        for request, (near, cosines, cut) in enumerate(self._load.neighbours.rows()):
            chosen, predicted = self._start(request, near, cosines, cut, times[request]), True
            found = chosen is not None
            if self._gate is not None and not self._gate.opens(request):
                chosen, predicted = None, False
            start, similarity, name, _ = chosen or NOTHING
            if start:
                self._shelf.use((name, start), times[request])
            evicted = self._keep(request, users[request], start, times[request])
            yield Decided(start, similarity, name, evicted, predicted, found)

    def held(self) -> dict[str, list[int]]:
        """The steps whose states each entry holds."""
        return {self._names[request]: list(steps) for request, steps in self._present.items()}

    def _start(
        self, request: int, near: Sequence[int], cosines: Sequence[float], cut: bool, now: float
    ) -> Weighed | None:
        if self._policy.lookup == "none":
            return None
        if self._policy.lookup == "text":
            return self._repeat(request)
        limit, present = self._policy.candidates, self._present
        weighed = []
        for other, cosine in zip(near, cosines, strict=True):
            steps = present.get(other)
            if steps is not None:
                weighed.append(weigh(self._ladder, self._names[other], cosine, steps))
                if len(weighed) == limit:
                    break
        chosen = best(weighed)
        if cut and len(weighed) < limit and self._ladder.wished(cosines[-1]) > (chosen.start_step if chosen else 0):
            self.searched += 1
            found = self._live.nearest(request, limit, self._load.neighbours.floor)
            weighed = [weigh(self._ladder, self._names[one], cosine, present[one]) for one, cosine in found]
            chosen = best(weighed)
        self._shelf.looked_up([Wish(one.entry_id, one.wished_step, one.start_step) for one in weighed], now)
        return chosen

    def _repeat(self, request: int) -> Weighed | None:
        """The same words again: the stored picture."""
        same = self._of_text.get(self._text(request))
        return None if same is None else Weighed(self._load.steps, 1.0, self._names[same], self._load.steps)

    def _vector(self, request: int) -> Vector:
        row: Vector = self._load.vectors[self._load.text_of[request]]
        return row

    def _text(self, request: int) -> tuple[int, int]:
        groups = self._load.group_of
        return int(self._load.text_of[request]), -1 if groups is None else int(groups[request])

    def _steps_kept(self, start: int) -> tuple[int, ...]:
        """What is kept of a picture that started after `start` steps."""
        if self._policy.reuses == "picture":
            return () if start else (self._load.steps,)
        ks = self._policy.capture_steps
        return captured(ks, self._load.steps, start, insert_on_hit=self._policy.insert_on_hit)

    def _keep(self, request: int, user: str, start: int, now: float) -> int:
        """Inserts the request's states, as the cache maintainer does; how many had to leave for them."""
        name, size = self._names[request], self._state_bytes[request]
        steps = self._shelf.admit(Offer(name, user, start, self._captured(start), size, now), self._max_bytes)
        if not steps:
            return 0
        victims = self._shelf.make_room(len(steps), len(steps) * size, self._max_bytes, now)
        for victim in victims:
            self._drop(victim)
        for step in steps:
            self._shelf.insert(State(name, step, "", size, "", "", 0, now, now))
        self._present[request] = list(steps)
        self._live.add(request)
        self._of_text[self._text(request)] = request
        if self._gate is not None:
            self._gate.add(name, request)
        return len(victims)

    def _drop(self, state: State) -> None:
        request = int(state.entry_id)
        left = self._present[request]
        left.remove(state.step)
        if not left:
            del self._present[request]
            self._live.remove(request)
            if self._gate is not None:
                self._gate.remove(state.entry_id)
            if self._of_text.get(self._text(request)) == request:
                del self._of_text[self._text(request)]


def best(weighed: Iterable[Weighed]) -> Weighed | None:
    """What the planner takes of them."""
    return max((one for one in weighed if one.start_step), key=preference, default=None)


def _table(load: Load, policy: PolicySettings) -> KTable:
    if policy.reuses == "picture":
        return KTable((Level(load.steps, policy.min_similarity),), load.steps)
    return load.table
