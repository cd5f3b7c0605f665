"""The whole monitor on facts with times of their own: steps of demand, workers that die, join and lie."""

from __future__ import annotations

from itertools import pairwise

import pytest

from services.global_monitor.monitor import GlobalMonitor
from shared.domain.messages import JobQueued, JobSucceeded, WorkerReported, WorkersAssigned, lane_of, refine_lane
from tests.unit.global_monitor.conftest import TICK_S, P, Town


def test_little_demand_is_drawn_by_large_models_alone_and_more_of_it_by_fewer() -> None:
    """W_miss = .4 R, W_hit = .6 · .5 R = .3 R per minute, P = 1, 2, 6: all large up to R = 22. At R = 30 sdxl cannot
    carry it, N + 2 (16 − N) ≥ 21 ⇔ N ≤ 11 with 12 for the misses; sana can: N + 6 (16 − N) ≥ 21 ⇔ N ≤ 15."""
    town = Town()
    assert town.run(12, 20).count("large") == 16
    decision = town.run(30, 30)
    assert (decision.target.small, decision.mode, decision.target.large) == ("sana", "quality", 15)
    assert decision.count("large") == 15
    assert decision.count("sana") == 1
    assert decision.demand.hit_rate == pytest.approx(0.6, abs=0.02)


def test_sdxl_refines_where_it_can_and_the_monitor_goes_back_up_to_it() -> None:
    """h = .9, k = 5: W_miss = .1 R, W_hit = .81 R, and a tenth more is planned for. R = 25.5: N + 2 (16 − N) ≥ 25.5
    ⇔ N ≤ 6 with sdxl. R = 59, 6.5 and 52.6: sdxl with N = 7 does 25; sana: N + 6 (16 − N) ≥ 59.1 ⇔ N ≤ 7."""
    town = Town(headroom=0.1)
    first = town.run(20, 25.5, 0.9, 5)
    assert (first.target.small, first.count("sdxl")) == ("sdxl", 10)
    second = town.run(30, 59, 0.9, 5)
    assert (second.target.small, second.mode) == ("sana", "quality")
    assert (second.count("large"), second.count("sana")) == (7, 9)
    third = town.run(30, 21.5, 0.9, 5)  # with room to spare: N + 2 (16 − N) ≥ 21.5 ⇔ N ≤ 10
    assert (third.target.small, third.count("sdxl")) == ("sdxl", 6)


def test_a_demand_that_nobody_can_meet_is_balanced_by_eq_12_with_the_fastest() -> None:
    decision = Town().run(6, 120, 0.5)
    assert (decision.mode, decision.target.small) == ("throughput", "sana")
    # eq. 12: 60/(60 + 30/6) · 16 = 14.8; with 15 large 6/30 of the hits are done, with 14 there are 14/60 of the misses
    assert decision.target.large == 14
    assert decision.count("sana") == 2


@pytest.mark.parametrize("period_s", [5, 30, 60, 180, 300])
def test_a_step_up_and_a_step_down_settle_without_swinging(period_s: float) -> None:
    town = Town(period_s=period_s, window_s=60.0)
    for per_minute in (10, 26, 10):
        before = len(town.decisions)
        town.run(30, per_minute, 0.9, 5)
        counts = town.counts()[max(before - 1, 0) :]
        moves = [after - now for now, after in pairwise(counts) if after != now]
        assert all(move > 0 for move in moves) or all(move < 0 for move in moves), counts
    assert town.counts()[-1] == 16


def test_throughput_mode_keeps_hits_on_small_models() -> None:
    town = Town(mode="throughput")
    decision = town.run(30, 12, 0.9, 5)
    assert decision.mode == "throughput"
    assert 1 <= decision.count("large") < 16
    assert town.run(30, 12, 0.0).count("large") == 16  # nothing to refine: eq. 12 says all


def test_a_worker_that_dies_is_missed_at_once_and_one_that_joins_is_used() -> None:
    town = Town()
    town.run(20, 26, 0.9, 5)
    before = len(town.decisions)
    for name in [name for name, model in town.models.items() if model == "sdxl"][:6]:
        del town.models[name]
    after = town.run(1, 26, 0.9, 5)
    assert len(town.decisions) > before  # sooner than the period
    assert len(after.models) == 10
    later = town.run(20, 26, 0.9, 5)
    assert later.target.small == "sana"  # sdxl cannot carry it with ten workers
    town.models |= {f"new{number}": "large" for number in range(6)}
    town.run(1, 26, 0.9, 5)
    assert len(town.decisions[-1].models) == 16
    assert town.run(30, 26, 0.9, 5).target.small == "sdxl"


def test_a_small_worker_that_is_far_slower_than_it_says_counts_for_what_it_does() -> None:
    town = Town(2, smalls=("sana",), mode="throughput", catch_up_s=600.0)
    town.run(6, 1.5)
    (liar,) = [name for name, model in town.models.items() if model == "sana"]
    for job in range(400):  # more waits than it can do
        town.monitor.hear(JobQueued(f"waits {job}", refine_lane(), "large", "image", start_step=25), town.at)
    for second in range(300):
        town.at += 1
        town.report()
        if second % 20 == 0:  # 25 steps in 20 s: .025 a second instead of .1
            town.monitor.hear(JobSucceeded(f"waits {second}", 1, liar, "sana", 25), town.at)
        town.monitor.look(town.at)
    worker = next(worker for worker in town.monitor.view(town.at).workers if worker.name == liar)
    assert worker.credit == pytest.approx(0.25, rel=0.15)
    assert worker.rates["sana"] == pytest.approx(0.025, rel=0.15)


def backlog(town: Town, jobs: int, lane: str, k: int) -> None:
    for job in range(jobs):
        town.monitor.hear(JobQueued(f"{lane} {job}", lane, "large", "image", start_step=k), town.at)


def credits(town: Town) -> dict[str, float]:
    return {worker.name: worker.credit for worker in town.monitor.view(town.at).workers}


def test_hits_that_wait_for_small_workers_make_no_liar_of_the_large_one() -> None:
    """In throughput mode it does not take them, and a miss that it has in hand does not wait."""
    town = Town(2, smalls=("sana",), mode="throughput", catch_up_s=600.0)
    town.run(6, 1.5)
    (small,) = [name for name, model in town.models.items() if model == "sana"]
    backlog(town, 400, refine_lane(), 25)
    for minute in range(10):
        backlog(town, 1, lane_of("large"), 0)
        for second in range(60):
            town.at += 1
            town.report()
            if second % 5 == 0:  # 25 steps in 5 s, as it says
                job = f"{refine_lane()} {minute * 12 + second // 5}"
                town.monitor.hear(JobSucceeded(job, 1, small, "sana", 25), town.at)
            town.monitor.look(town.at)
        town.monitor.hear(JobSucceeded(f"{lane_of('large')} 0", 1), town.at)
    assert set(credits(town).values()) == {1.0}


def test_a_worker_that_lacked_work_between_two_looks_is_not_judged_by_them() -> None:
    town = Town(1)
    town.report()
    for _ in range(60):
        backlog(town, 3, lane_of("large"), 0)
        town.monitor.look(town.at)
        for job in range(3):
            town.monitor.hear(JobSucceeded(f"{lane_of('large')} {job}", 1), town.at)
        town.at += TICK_S
        town.report()
        backlog(town, 3, lane_of("large"), 0)
        town.monitor.look(town.at)
    assert credits(town) == {"w00": 1.0}
    for _ in range(60):  # it lacks nothing, and finishes nothing
        town.at += TICK_S
        town.report()
        town.monitor.look(town.at)
    assert credits(town) == {"w00": 0.01}


def test_a_monitor_that_starts_anew_goes_on_from_what_workers_run() -> None:
    town = Town()
    town.run(20, 26, 0.9, 5)
    old = dict(town.models)
    town.monitor = GlobalMonitor(town.monitor.rules, town.at)
    town.report()
    assert dict(town.monitor.models) == old
    town.run(20, 26, 0.9, 5)
    assert town.models == old


def test_a_standby_adopts_what_the_leader_says() -> None:
    town = Town(2)
    town.report()
    town.monitor.adopt(WorkersAssigned((("w00", "large"), ("w01", "sana")), "throughput"))
    assert dict(town.monitor.models) == {"w00": "large", "w01": "sana"}
    assert town.monitor.mode == "throughput"
    assert town.monitor.view(1.0).models["w01"] == "sana"


def test_small_models_that_nobody_could_run_are_used_once_somebody_can() -> None:
    town = Town(workers=3)
    town.rates = {name: {"large": P["large"]} for name in town.models}
    last = town.run(minutes=9, per_minute=5)
    assert (last.count("large"), last.target.small) == (3, "")
    town.rates = {}  # their folders were mended, say
    last = town.run(minutes=12, per_minute=5)
    assert (last.count("large"), last.count("sdxl")) == (2, 1)


def test_workers_that_measured_nothing_yet_do_not_stop_it() -> None:
    town = Town(workers=2)
    town.rates = {name: {} for name in town.models}
    town.models["w01"] = "sana"
    last = town.run(minutes=9, per_minute=6)
    assert last.count("large") == 2  # who nobody knows to be able to run a small model


def test_a_replica_that_only_stands_by_forgets_who_is_gone() -> None:
    """It decides nothing for as long as another one leads, and workers have a new name with every start."""
    town = Town(workers=2)
    for start in range(50):
        town.at += TICK_S
        town.report()
        town.monitor.hear(WorkerReported(f"s{start}", "gpu", "large", 0, 1, ()), town.at)
        town.monitor.adopt(WorkersAssigned(tuple((name, "large") for name in (*town.models, f"s{start}")), "quality"))
        if start % 2:
            town.monitor.hear(WorkerReported(f"s{start}", "gpu", "large", 0, 1, (), leaving=True), town.at)
        town.monitor.look(town.at)
    known = {worker.name for worker in town.monitor.view(town.at).workers}
    assert town.monitor._home.keys() == town.monitor._runs.keys() == known
    assert len(known) < 8
