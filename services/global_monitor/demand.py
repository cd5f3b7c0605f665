"""The demand: request rates, hit rate and K histogram per lane and modality, from the events of a time window (MoDM
§5.3)."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from shared.domain.messages import JobQueued, lane_of
from shared.domain.types import Modality

GENERATION = 50
"""Steps of the paper's full generation, the unit of work for requests of any T."""
Generations = Mapping[str, float]
"""Steps of a full generation by model, if not GENERATION: 10 steps of a Turbo do the work of 50 of a large model."""
FORGOTTEN_S = 3600.0
"""Seconds after which a job without an end event counts as ended."""
LEAST_WINDOW_S = 1.0
"""Minimum seconds over which a rate is computed, right after the start."""

Lane = tuple[str, str]
"""(lane, modality). A hit in `refine` that only one model may run counts as waiting in that model's lane."""


@dataclass(frozen=True, slots=True)
class LaneDemand:
    """The demand of one lane; work is in full generations."""

    lane: str
    modality: str
    requests_per_s: float
    work_per_s: float
    share_by_k: Mapping[int, float] = field(default_factory=dict)
    """Share of the lane's requests by K of 50."""
    waiting: float = 0.0
    """Work that no worker has claimed yet."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand of all lanes."""

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
        """H_cache: the share of requests that start from a cached state or image."""
        return sum(share for k, share in self.share_by_k.items() if k)


@dataclass(frozen=True, slots=True)
class _Asked:
    at: float
    lane: Lane
    work: float
    k: int


class _Sums:
    """Running sums of requests per lane, because a window may hold tens of thousands."""

    def __init__(self) -> None:
        self.work: dict[Lane, float] = {}
        self.by_k: dict[Lane, Counter[int]] = {}

    def add(self, asked: _Asked, count: int = 1) -> None:
        by_k = self.by_k.setdefault(asked.lane, Counter())
        by_k[asked.k] += count
        self.work[asked.lane] = self.work.get(asked.lane, 0.0) + count * asked.work
        if not by_k[asked.k]:
            del by_k[asked.k]
        if not by_k:  # and drop the rounding error with the lane
            del self.by_k[asked.lane], self.work[asked.lane]


class DemandWindow:
    """The demand within a sliding window, from queued and ended jobs. `at`: seconds of a monotonic clock."""

    def __init__(self, window_s: float, at: float, generations: Generations | None = None) -> None:
        self._window_s, self._since, self._generations = window_s, at, generations or {}
        self._asked: deque[_Asked] = deque()
        self._open: dict[str, _Asked] = {}
        """Jobs queued and not ended, oldest first."""
        self._in_window, self._waiting = _Sums(), _Sums()

    def queued(self, fact: JobQueued, at: float) -> None:
        """Count a job of an image. Clips do not count: the video model runs wherever it is loaded."""
        if fact.modality == Modality.VIDEO:
            return
        left = max(fact.steps - fact.start_step, 0) / self._generations.get(fact.model, GENERATION)
        k = round(fact.start_step * GENERATION / max(fact.steps, 1))
        # a job that only one model may run is that model's work, in any lane
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
        """Count jobs of these lanes that have not ended, waiting or held by a worker."""
        return sum(by_k.total() for (lane, _), by_k in self._waiting.by_k.items() if lane in lanes)

    def missed(self) -> None:
        """Drop all open jobs, because events were lost and it is unknown which have ended. Only jobs queued from now on
        count as waiting."""
        self._open.clear()
        self._waiting = _Sums()

    def demand(self, at: float, in_hand: int = 0) -> Demand:
        """Return the demand of the window that ends now. in_hand: jobs that workers hold; all other open jobs are
        waiting."""
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
