"""Replay one policy over one trace in virtual time: states enter the cache when their image is finished."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from services.replay.simulated.decisions import Decisions, Looked, nothing_decided
from services.replay.simulated.pace import Profile, slo_s
from services.replay.simulated.simulation import Replay
from services.replay.simulated.worker_state import Done, Request
from services.replay.simulated.workers import Workers
from services.replay.traces.trace import Trace
from shared.domain.types import Plan, PlanSource

SLO_TIMES = (2.0, 4.0)
"""SLOs as multiples of the latency of an image generated alone from noise (MoDM §6)."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Fleet:
    """Workers in virtual time, all with the same model."""

    profile: Profile
    workers: int
    max_rows: int
    closed: bool = False
    """Each request arrives when a worker has a free row: the throughput of workers that are never idle."""


@dataclass(frozen=True)
class Served:
    """Arrival, start and end of each request, in seconds of virtual time, and the load of the workers."""

    arrived_at: Floats
    joined_at: Floats
    done_at: Floats
    busy_s: float
    row_s: float
    ended_at: float
    longest_queue: int


class TimedReplay:
    """Decides as `Replay` does, each request at its arrival, on workers with a measured latency."""

    def __init__(self, replay: Replay, trace: Trace, steps: int, fleet: Fleet) -> None:
        self._replay, self._trace = replay, trace
        self._steps: list[int] = trace.asked(steps).tolist()
        count = len(trace)
        self._made = nothing_decided(count)
        self._joined, self._done = np.zeros(count), np.zeros(count)
        self._arrived = np.zeros(count) if fleet.closed else trace.arrival_s
        self._closed = fleet.closed
        self._in_hand: dict[int, Looked] = {}
        model = fleet.profile.model
        # with one model, hits and misses wait in the model's own lane, and a broker pushes them
        self._workers = Workers(
            (model,), {model: fleet.profile}, fleet.workers, self._finished, max_rows=fleet.max_rows, in_turns=True
        )
        self._plan = cache(partial(_plan, model))

    def run(self, advance: Callable[[int], None] = lambda _: None) -> tuple[Decisions, Served]:
        """Run until the last image is finished; `advance` counts the arrivals."""
        for request, row in enumerate(self._replay.rows()):
            if self._closed:
                self._workers.until_free()
                self._arrived[request] = self._workers.now
            now = float(self._arrived[request])
            self._workers.until(now)
            looked = self._in_hand[request] = self._replay.look(request, row, now)
            self._replay.note(self._made, request, looked)
            plan, steps = self._plan(looked.start_step), self._steps[request]
            self._workers.arrive(Request(request, now, plan, steps))
            if request % 1024 == 1023:
                advance(1024)
        self._workers.finish()
        advance(len(self._trace) % 1024)
        workers = self._workers.workers
        served = Served(
            self._arrived, self._joined, self._done, sum(one.busy_s for one in workers),
            sum(one.row_s for one in workers), self._workers.now, self._workers.longest,
        )  # fmt: skip
        return replace(self._made, searched=self._replay.searched), served

    def _finished(self, done: Done) -> None:
        request, at = done.request.number, done.at
        self._joined[request], self._done[request] = done.joined_at, at
        self._made.evicted[request] = self._replay.keep(request, self._in_hand.pop(request), at)
        self._made.states[request], self._made.bytes[request] = self._replay.holds


def _plan(model: str, start_step: int) -> Plan:
    """Return the plan of a start step; a refined image starts as a latent does, since encoding takes no time here."""
    return Plan(PlanSource.LATENT if start_step else PlanSource.NOISE, model, start_step)


def timed_figures(served: Served, trace: Trace, warmup: int, steps: int, fleet: Fleet) -> dict[str, Any]:
    """Return latency, queueing, throughput and SLOs of the counted requests.

    A request's SLOs are multiples of the latency of an image with its T, generated alone. `slo_s` has their seconds if
    every request has the same T, and None otherwise.
    """
    arrived, done = served.arrived_at[warmup:], served.done_at[warmup:]
    latency, queued = done - arrived, served.joined_at[warmup:] - arrived
    alone = trace.asked(steps)[warmup:] * fleet.profile.of(1) + fleet.profile.decode_s
    limits = slo_s(fleet.profile, steps, SLO_TIMES) if trace.steps is None else [None] * len(SLO_TIMES)
    lasted = max(float(done.max() - arrived[0]), 1e-9)
    return {
        "latency_s": quantiles(latency),
        "queued_s": quantiles(queued),
        "served_per_s": len(done) / lasted,
        "offered_per_s": len(arrived) / max(float(arrived[-1] - arrived[0]), 1e-9),
        "slo": {f"{times:g}": float((latency <= times * alone).mean()) for times in SLO_TIMES},
        "slo_s": {f"{times:g}": limit for times, limit in zip(SLO_TIMES, limits, strict=True)},
        "busy": served.busy_s / (fleet.workers * served.ended_at),
        "rows": served.row_s / max(served.busy_s, 1e-9),
        "longest_queue": served.longest_queue,
        "curve": [float(value) for value in np.quantile(latency, np.linspace(0, 1, 101))],
    }


def quantiles(values: Floats) -> dict[str, float]:
    """Return mean, p50, p95 and p99."""
    return {"mean": float(values.mean()), **{f"p{q}": float(np.quantile(values, q / 100)) for q in (50, 95, 99)}}
