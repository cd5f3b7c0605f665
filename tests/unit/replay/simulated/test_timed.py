"""Decisions in virtual time: the same where drawing takes none, fewer hits where it takes long."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from services.replay.policy import read_policy
from services.replay.simulated.decisions import Decisions
from services.replay.simulated.pace import Profile
from services.replay.simulated.simulation import Replay
from services.replay.simulated.timed import Fleet, Served, TimedReplay, timed_figures
from services.replay.traces.load import Load
from tests.unit.replay.house import STATE, load_of, own_steps, topics

ROOM = 60 * STATE


def a_load() -> Load:
    """No two requests lie so far apart that a moment more is another length of silence (services/cache_maintainer)."""
    load = load_of(*topics(300))
    return replace(load, trace=replace(load.trace, arrival_s=1.01 * load.trace.arrival_s))


def timed(name: str, step_s: float, workers: int = 4) -> tuple[Decisions, Served, Fleet]:
    load, fleet = a_load(), Fleet(Profile("toy", (1, 8), (step_s, 2 * step_s), step_s), workers, 8)
    made, served = TimedReplay(Replay(load, read_policy(name), ROOM), load.trace, load.steps, fleet).run()
    return made, served, fleet


@pytest.mark.parametrize("name", ["afterimage", "flexcache", "lru-hits", "modm"])
def test_drawing_in_no_time_decides_as_decisions_alone_do(name: str) -> None:
    load = a_load()
    alone = Replay(load, read_policy(name), ROOM).run()
    made = timed(name, 1e-6)[0]
    assert made.start_step.tolist() == alone.start_step.tolist()
    assert made.source.tolist() == alone.source.tolist()
    assert made.evicted.sum() == alone.evicted.sum() > 0


def test_what_is_not_finished_starts_nothing() -> None:
    at_once, late = timed("infinite", 1e-6)[0], timed("infinite", 0.2)[0]
    assert 0 < late.start_step.sum() < at_once.start_step.sum()


def test_hits_make_it_faster() -> None:
    load = a_load()
    figures = {}
    for name in ("none", "infinite"):
        _, served, fleet = timed(name, 0.05, workers=2)
        figures[name] = timed_figures(served, load.trace, 30, load.steps, fleet)
        assert served.done_at.min() > 0
    slow, fast = figures["none"], figures["infinite"]
    assert fast["latency_s"]["p50"] < slow["latency_s"]["p50"]
    assert fast["slo"]["2"] >= slow["slo"]["2"]
    assert fast["busy"] <= slow["busy"] <= 1
    assert slow["latency_s"]["p99"] >= slow["queued_s"]["p99"]
    assert slow["slo_s"] == {"2": pytest.approx(2 * 51 * 0.05), "4": pytest.approx(4 * 51 * 0.05)}


def test_each_request_takes_and_is_held_against_its_own_steps() -> None:
    steps = np.random.default_rng(2).choice((5, 50, 150), 300)
    load, fleet = own_steps(a_load(), steps), Fleet(Profile("toy", (1, 8), (1e-4, 2e-4), 1e-3), 300, 1)
    made, served = TimedReplay(Replay(load, read_policy("lru-hits"), ROOM), load.trace, load.steps, fleet).run()
    took = served.done_at - load.trace.arrival_s
    assert took == pytest.approx((steps - made.start_step) * 1e-4 + 1e-3)
    assert made.start_step.any()
    figures = timed_figures(served, load.trace, 30, load.steps, fleet)
    assert figures["slo"] == {"2": 1.0, "4": 1.0}  # of a picture of 50 steps, 150 would be 2.8
    assert figures["slo_s"] == {"2": None, "4": None}


def test_a_closed_loop_keeps_the_worker_busy_and_decides_in_turn() -> None:
    load, fleet = a_load(), Fleet(Profile("toy", (1,), (0.5,), 0.0), 1, 1, closed=True)
    made, served = TimedReplay(Replay(load, read_policy("flexcache"), ROOM), load.trace, load.steps, fleet).run()
    assert served.joined_at.tolist() == served.arrived_at.tolist()
    assert served.busy_s == pytest.approx(served.ended_at) == pytest.approx(0.5 * (50 - made.start_step).sum())
    in_turn = replace(load, trace=replace(load.trace, arrival_s=served.arrived_at))
    assert Replay(in_turn, read_policy("flexcache"), ROOM).run().start_step.tolist() == made.start_step.tolist()


def test_a_closed_loop_fills_every_row_of_its_workers_and_no_more() -> None:
    load, fleet = a_load(), Fleet(Profile("toy", (1, 4), (0.1, 0.2), 0.05), 4, 2, closed=True)
    made, served = TimedReplay(Replay(load, read_policy("flexcache"), ROOM), load.trace, load.steps, fleet).run()
    assert made.start_step.any()  # requests after the first find what the others left
    in_work = [((served.arrived_at <= at) & (served.done_at > at)).sum() for at in served.arrived_at]
    assert max(in_work) == 8
