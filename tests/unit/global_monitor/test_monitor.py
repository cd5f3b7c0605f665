"""The whole monitor on facts with times of their own: steps of demand, workers that die, join and lie, and switches."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest

from services.global_monitor.allocation.fleet import Capacity, Group
from services.global_monitor.allocation.payback import Stage, done, expected_s, pays_back
from services.global_monitor.allocation.placement import Band, place
from services.global_monitor.allocation.workload import Workload
from services.global_monitor.monitor import Decision, GlobalMonitor, Rules
from shared.domain.messages import JobQueued, JobSucceeded, WorkerReported, WorkersAssigned, lane_of, refine_lane

P = {"large": 1 / 60, "sdxl": 2 / 60, "sana": 6 / 60}
"""Full generations a second of an honest worker."""

TICK_S = 5.0
"""Workers report, and the monitor looks."""


class Town:
    """Workers that obey at once, and a demand that is served at once: what is looked at is the monitor."""

    def __init__(self, workers: int = 16, **rules: object) -> None:
        given = {"large": "large", "smalls": ("sdxl", "sana"), "headroom": 0.0, "catch_up_s": 0.0} | rules
        self.monitor = GlobalMonitor(Rules(**given), 0.0)  # type: ignore[arg-type]
        self.at, self._jobs = 0.0, 0
        self.models = {f"w{number:02}": "large" for number in range(workers)}
        self.rates: dict[str, Mapping[str, float]] = {}
        self.decisions: list[Decision] = []
        self._due = {"miss": 0.0, "hit": 0.0}

    def report(self) -> None:
        for name, model in self.models.items():
            rates = self.rates.get(name, P)
            steps = tuple((one, 1, 1 / rate / 50) for one, rate in rates.items())
            self.monitor.hear(WorkerReported(name, "gpu", model, 0, 1, steps), self.at)

    def run(self, minutes: float, per_minute: float, hits: float = 0.6, k: int = 25) -> Decision:
        """Evenly spaced requests for so long; the last decision."""
        for _ in range(round(minutes * 60 / TICK_S)):
            self.at += TICK_S
            self.report()
            self._ask("miss", (1 - hits) * per_minute / 60 * TICK_S, lane_of("large"), 0)
            self._ask("hit", hits * per_minute / 60 * TICK_S, refine_lane(), k)
            self.monitor.look(self.at)
            if self.monitor.urgent or self.at % self.monitor.rules.period_s == 0:
                self.decide()
        return self.decisions[-1]

    def _ask(self, kind: str, count: float, lane: str, k: int) -> None:
        self._due[kind] += count
        while self._due[kind] >= 1:
            self._due[kind] -= 1
            self._jobs += 1
            self.monitor.hear(JobQueued(str(self._jobs), lane, "large", "image", start_step=k), self.at)
            self.monitor.hear(JobSucceeded(str(self._jobs), 1), self.at)

    def decide(self) -> Decision:
        decision = self.monitor.decide(self.at)
        self.decisions.append(decision)
        self.models = {name: decision.models[name] for name in self.models}
        return decision

    def counts(self) -> list[int]:
        return [decision.count("large") for decision in self.decisions]


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


def test_switches_that_cannot_pay_back_are_not_made() -> None:
    """.36 misses and 1.62 · 1.2 hits a minute are more than 2 large workers do, but a batch of one takes a minute to
    drain: longer than a period of half a minute, and worth it within three."""
    for period_s, large in ((30.0, 2), (180.0, 1)):
        town = Town(2, smalls=("sana",), period_s=period_s)
        decision = town.run(12, 4, 0.9)
        assert decision.target.large == 1
        assert decision.count("large") == large
        assert bool(decision.kept) == (large == 2), decision.kept
        if large == 2:
            assert decision.kept == "1 × 30 s of switching would not pay back within 30 s"


class SlowTown(Town):
    """Workers that need a minute to change their model."""

    def decide(self) -> Decision:
        decision = self.monitor.decide(self.at)
        self.decisions.append(decision)
        self._changes = {name: (self.at + 60, decision.models[name]) for name in decision.switches}
        return decision

    def report(self) -> None:
        for name, (at, model) in getattr(self, "_changes", {}).items():
            self.models[name] = model if self.at >= at else self.models[name]
        super().report()


def test_a_switch_back_up_is_made_once_its_demand_has_lasted_as_long_as_it_needs_to_pay_back() -> None:
    """h = .9, k = 5: 59 a minute need sana. 24 a minute are 21.8 full generations; sdxl on 9 workers beside 7 large
    ones does 25. A minute with 7 workers leaves 14.8 undone, 3.2 are caught up in each minute after it: 340 s."""
    town = SlowTown(headroom=0.1, catch_up_s=600.0)
    assert town.run(30, 59, 0.9, 5).target.small == "sana"
    before = len(town.decisions)
    last = town.run(60, 24, 0.9, 5)
    assert (last.target.small, last.count("large"), last.count("sdxl")) == ("sdxl", 8, 8)
    kept = [one.kept.rpartition("within ")[2] for one in town.decisions[before:] if one.target.small == "sdxl"]
    assert kept[:2] == ["180 s", ""]
    smalls = [max(("sdxl", "sana"), key=one.count) for one in town.decisions[before:]]
    assert smalls == sorted(smalls)  # sana, then sdxl for good


def test_a_switch_that_needs_longer_than_waiting_work_may_take_is_never_made() -> None:
    town = SlowTown(headroom=0.1, catch_up_s=240.0)
    town.run(30, 59, 0.9, 5)
    last = town.run(60, 24, 0.9, 5)
    assert (last.target.small, last.count("sdxl")) == ("sdxl", 0)
    assert last.kept.endswith("within 240 s")


def test_a_demand_is_expected_to_last_as_long_as_it_has_lasted_within_what_waiting_work_may_take() -> None:
    assert [expected_s(wanted, 180.0, 600.0) for wanted in (0, 180, 360, 540, 900)] == [180, 360, 540, 600, 600]
    assert expected_s(900, 180.0, 0.0) == 180


# ---- placement and payback by hand


def test_who_runs_the_large_model_keeps_it() -> None:
    band = Band(Group(4, 1.0, 4.0), ("a", "b", "c", "d"))
    now = {"a": "small", "b": "large", "c": "large", "d": "large"}
    models = place([band], now, 2, "large", "small", Workload(1, 1), large_refines=True)
    assert models == {"a": "small", "b": "large", "c": "large", "d": "small"}


def test_whoever_is_best_at_the_large_model_gets_it_when_that_is_needed() -> None:
    fast, slow = Band(Group(1, 4.0, 4.0), ("fast",)), Band(Group(1, 1.0, 4.0), ("slow",))
    now = {"fast": "small", "slow": "large"}
    need = place([fast, slow], now, 1, "large", "small", Workload(3, 3), large_refines=True)
    assert need == {"fast": "large", "slow": "small"}
    enough = place([fast, slow], now, 1, "large", "small", Workload(1, 3), large_refines=True)
    assert enough == now  # a switch for nothing is not made


def test_nobody_gets_a_model_it_cannot_run() -> None:
    able, unable = Band(Group(1, 1.0, 4.0), ("able",)), Band(Group(1, 1.0, 0.0), ("unable",))
    now = {"able": "large", "unable": "small"}
    assert place([able, unable], now, 1, "large", "small", Workload(1, 1), large_refines=True) == {
        "able": "small",
        "unable": "large",
    }


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


def test_payback_by_hand() -> None:
    """Two large workers of 1 generation a minute; 1 miss and 4 hits a minute. One becomes small (4 a minute), a minute
    is lost: 2 · 3 = 6 before; 1 · 3 + 4 · 2 = 11 after, of which misses 3 and hits 8. Where hits are for the small one
    alone, one large and 15 small draw two thirds of 1.5 misses and as much of 60 hits; two and 14 draw 56 of those."""
    work = Workload(1, 4)
    before = Stage(3, Capacity(2, 0), large_refines=True)
    during, after = Stage(1, Capacity(1, 0), large_refines=True), Stage(2, Capacity(1, 4), large_refines=True)
    assert done((before,), work) == 6
    assert done((during, after), work) == 11
    assert pays_back(before, during, after, work, better=False)
    one, two = Stage(1, Capacity(1, 60), large_refines=False), Stage(1, Capacity(2, 56), large_refines=False)
    assert done((one,), Workload(1.5, 60)) == pytest.approx(41)
    assert done((two,), Workload(1.5, 60)) == pytest.approx(56 / 60 * 61.5)
    late = Stage(2.9, Capacity(1, 0), large_refines=True), Stage(0.1, Capacity(1, 4), large_refines=True)
    assert not pays_back(before, *late, work, better=False)
    assert not pays_back(before, Stage(3, Capacity(1, 0), True), Stage(0, Capacity(1, 4), True), work, better=True)


def test_better_pictures_are_worth_it_as_long_as_nothing_is_left_undone() -> None:
    before = Stage(3, Capacity(1, 4), large_refines=True)
    during, after = Stage(1, Capacity(1, 0), large_refines=True), Stage(2, Capacity(2, 0), large_refines=True)
    assert pays_back(before, during, after, Workload(0.5, 1), better=True)
    assert not pays_back(before, during, after, Workload(0.5, 1), better=False)
    assert not pays_back(before, during, after, Workload(1, 2), better=True)


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
