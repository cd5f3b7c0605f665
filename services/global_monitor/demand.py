"""What is asked for: rates, hit rate and K histogram per lane and modality, from the facts of a window (MoDM §5.3)."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from shared.domain.messages import JobQueued, lane_of

GENERATION = 50
"""Steps of the paper's full generation: work is counted in so many, whatever T a request asks for."""
Generations = Mapping[str, float]
"""Steps of a full generation by model, where not GENERATION: a Turbo's 10 do the work of a large model's 50."""
FORGOTTEN_S = 3600.0
"""A job whose end nobody told is not waited for after this."""
LEAST_WINDOW_S = 1.0
"""Right after the start a rate is over at least so long."""

Lane = tuple[str, str]
"""(lane, modality); a hit in `refine` that one model alone may draw counts as waiting in that model's lane."""


@dataclass(frozen=True, slots=True)
class LaneDemand:
    """What one lane was asked for; work is in full generations."""

    lane: str
    modality: str
    requests_per_s: float
    work_per_s: float
    share_by_k: Mapping[int, float] = field(default_factory=dict)
    """Share of the lane's requests by K of 50."""
    waiting: float = 0.0
    """Work that is in nobody's hands yet."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What all lanes were asked for."""

    lanes: tuple[LaneDemand, ...] = ()

    @property
    def requests_per_s(self) -> float:
        return sum(lane.requests_per_s for lane in self.lanes)

    @property
    def share_by_k(self) -> dict[int, float]:
        """Share of all requests by K of 50; 0 is a miss."""
        total, shares = self.requests_per_s, defaultdict[int, float](float)
        for lane in self.lanes:
            for k, share in lane.share_by_k.items():
                shares[k] += share * lane.requests_per_s / total
        return dict(sorted(shares.items()))

    @property
    def hit_rate(self) -> float:
        """H_cache: the share of requests that start from something."""
        return sum(share for k, share in self.share_by_k.items() if k)


@dataclass(frozen=True, slots=True)
class _Asked:
    at: float
    lane: Lane
    work: float
    k: int


class _Sums:
    """Requests per lane, kept up as they come and go: a window may hold tens of thousands."""

    def __init__(self) -> None:
        self.work: dict[Lane, float] = {}
        self.by_k: dict[Lane, Counter[int]] = {}

    def add(self, asked: _Asked, count: int = 1) -> None:
        by_k = self.by_k.setdefault(asked.lane, Counter())
        by_k[asked.k] += count
        self.work[asked.lane] = self.work.get(asked.lane, 0.0) + count * asked.work
        if not by_k[asked.k]:
            del by_k[asked.k]
        if not by_k:  # and no rounding stays behind
            del self.by_k[asked.lane], self.work[asked.lane]


class DemandWindow:
    """Hears what is queued and what ends; `at` is in seconds of one clock that does not go back."""

    def __init__(self, window_s: float, at: float, generations: Generations | None = None) -> None:
        self._window_s, self._since, self._generations = window_s, at, generations or {}
        self._asked: deque[_Asked] = deque()
        self._open: dict[str, _Asked] = {}
        """Queued and not ended, oldest first."""
        self._in_window, self._waiting = _Sums(), _Sums()

    def queued(self, fact: JobQueued, at: float) -> None:
        left = max(fact.steps - fact.start_step, 0) / self._generations.get(fact.model, GENERATION)
        k = round(fact.start_step * GENERATION / max(fact.steps, 1))
        # what one model alone may draw is that model's work, wherever it waits
        lane = lane_of(fact.only) if fact.only else fact.lane
        asked = _Asked(at, (lane, str(fact.modality)), left, k)
        self.ended(fact.job_id)
        self._asked.append(asked)
        self._open[fact.job_id] = asked
        self._in_window.add(asked)
        self._waiting.add(asked)

    def ended(self, job_id: str) -> None:
        asked = self._open.pop(job_id, None)
        if asked is not None:
            self._waiting.add(asked, -1)

    def open_in(self, lanes: Collection[str]) -> int:
        """Jobs of these lanes that have not ended, waiting or in a worker's hands."""
        return sum(by_k.total() for (lane, _), by_k in self._waiting.by_k.items() if lane in lanes)

    def missed(self) -> None:
        """Facts were lost: what has ended is not known, so nothing counts as waiting but what comes from now on."""
        self._open.clear()
        self._waiting = _Sums()

    def demand(self, at: float, in_hand: int = 0) -> Demand:
        """Of the window that ends now. in_hand: jobs that workers hold; the rest of what has not ended waits."""
        self._forget(at)
        seconds = max(min(self._window_s, at - self._since), LEAST_WINDOW_S)
        share = max(1 - in_hand / len(self._open), 0.0) if self._open else 0.0
        lanes = sorted({*self._in_window.work, *self._waiting.work})
        return Demand(tuple(self._lane(lane, seconds, share) for lane in lanes))

    def _lane(self, lane: Lane, seconds: float, share: float) -> LaneDemand:
        by_k = self._in_window.by_k.get(lane, Counter[int]())
        count = by_k.total()
        return LaneDemand(
            *lane,
            requests_per_s=count / seconds,
            work_per_s=self._in_window.work.get(lane, 0.0) / seconds,
            share_by_k={k: n / count for k, n in sorted(by_k.items())},
            waiting=share * self._waiting.work.get(lane, 0.0),
        )

    def _forget(self, at: float) -> None:
        while self._asked and self._asked[0].at <= at - self._window_s:
            self._in_window.add(self._asked.popleft(), -1)
        while self._open and (oldest := next(iter(self._open.items())))[1].at <= at - FORGOTTEN_S:
            self.ended(oldest[0])
