"""Workers come, go, and are believed as far as what they finish bears it out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.global_monitor.roster import Roster
from services.global_monitor.throughput import by_kind, rates_of
from services.global_monitor.trust import Evidence, credit
from shared.domain.messages import JobSucceeded, WorkerReported

Steps = tuple[tuple[str, int, float], ...]
FAST: Steps = (("large", 1, 0.02), ("large", 8, 0.1))
"""80 steps a second: 1.6 full generations."""


def report(name: str = "a", step_s: Steps = FAST, model: str = "large", **more: object) -> WorkerReported:
    return WorkerReported(name, "gpu", model, rows=8, max_rows=8, step_s=step_s, **more)  # type: ignore[arg-type]


def test_throughput_is_that_of_the_best_batch() -> None:
    assert rates_of(FAST) == {"large": pytest.approx(1.6)}
    assert rates_of((("large", 1, 0.02), ("large", 8, 0.4))) == {"large": pytest.approx(1.0)}
    assert rates_of((("large", 1, 0.0),)) == {}
    assert by_kind([("gpu", {"a": 1.0}), ("gpu", {"a": 3.0}), ("cpu", {"a": 9.0})]) == {
        ("gpu", "a"): 2.0,
        ("cpu", "a"): 9.0,
    }


def test_a_worker_that_is_not_heard_of_is_dead() -> None:
    roster = Roster(15.0)
    assert roster.reported(report("a"), 0.0)
    assert roster.reported(report("b"), 10.0)
    assert not roster.reported(report("b"), 12.0)
    assert roster.lapse(15.0) == ()
    assert roster.lapse(16.0) == ("a",)
    assert [worker.name for worker in roster.workers()] == ["b"]
    assert roster.reported(report("a"), 17.0)  # and back


def test_a_worker_that_leaves_says_so() -> None:
    roster = Roster(15.0)
    roster.reported(report("a"), 0.0)
    assert roster.reported(report("a", leaving=True), 1.0)
    assert roster.workers() == []


def test_what_a_worker_did_not_measure_is_taken_from_its_kind_unless_it_cannot_run_it() -> None:
    roster = Roster(15.0)
    both: Steps = (*FAST, ("small", 8, 0.025))
    for name, steps in (("a", both), ("b", FAST), ("c", FAST)):
        assert roster.reported(report(name, steps), 0.0)
    assert roster.reported(report("c", FAST, cannot=("small",)), 0.0)
    rates = {worker.name: dict(worker.rates) for worker in roster.workers()}
    assert rates["b"] == pytest.approx({"large": 1.6, "small": 6.4})
    assert rates["c"] == pytest.approx({"large": 1.6})


@pytest.mark.parametrize(("share", "believed"), [(1.0, 1.0), (0.6, 1.0), (0.25, 0.25), (4.0, 4.0), (0.0, 0.01)])
def test_a_claim_far_from_what_is_finished_is_replaced_by_it(share: float, believed: float) -> None:
    seconds = 60.0
    evidence = Evidence("large", 0.0, round(share * 1.6 * 50 * seconds))
    assert credit(1.6, 8, evidence, seconds) == pytest.approx(believed)


def test_little_evidence_changes_nothing() -> None:
    assert credit(1.6, 8, Evidence("large", 0.0, 0), 14.0) == 1.0
    assert credit(1.6, 8, Evidence("large", 0.0, 0), 14.0, before=0.3) == 0.3


def looked(roster: Roster, seconds: int, share: float, *, pressed: bool = True) -> None:
    """A worker that finishes this share of what it says, looked at every second."""
    for second in range(seconds):
        roster.finished(JobSucceeded("j", 1, "a", "large", round(share * 80)))
        roster.judge(second + 1.0, lambda _: pressed)


def test_a_liar_is_found_out_while_it_has_work() -> None:
    roster = Roster(1e9)
    roster.reported(report(), 0.0)
    looked(roster, 60, 0.2)
    (worker,) = roster.workers()
    assert worker.credit == pytest.approx(0.2, rel=0.1)
    assert worker.rates["large"] == pytest.approx(0.32, rel=0.1)


def test_a_worker_that_is_busy_with_a_clip_keeps_its_credit() -> None:
    """A step of the clip takes nine times an image's step, so the worker finishes a tenth of the images."""
    roster = Roster(1e9)
    roster.reported(report(step_s=(*FAST, ("motion", 1, 0.9)), clips=1), 0.0)
    looked(roster, 60, 0.1)
    assert roster.workers()[0].credit == 1.0
    roster.reported(report(step_s=(*FAST, ("motion", 1, 0.9))), 60.0)
    for second in range(60, 121):  # alone with images, it is judged again
        roster.judge(float(second), lambda _: True)
    assert roster.workers()[0].credit < 0.1


def test_what_it_draws_with_a_model_that_nobody_runs_counts_by_the_time_it_takes() -> None:
    """1.6 generations a second with the large model and 6.4 with the small: three quarters of a minute with the small
    one are 45 · 320 of its steps, and as good as 45 · 80 of the large one's."""
    roster = Roster(1e9)
    roster.reported(report(step_s=(*FAST, ("small", 8, 0.025))), 0.0)
    roster.judge(0.0, lambda _: True)
    for _ in range(45):
        roster.finished(JobSucceeded("j", 1, "a", "small", 320))
    for _ in range(15):
        roster.finished(JobSucceeded("j", 1, "a", "large", 80))
    roster.finished(JobSucceeded("j", 1, "a", "another", 10_000))  # of which nothing is known
    roster.judge(60.0, lambda _: True)
    assert roster.workers()[0].credit == 1.0
    assert roster._heard["a"].evidence.steps == pytest.approx(60 * 80)


def test_fewer_steps_make_a_full_generation_of_a_model_with_a_t_of_its_own() -> None:
    assert rates_of((("turbo", 8, 0.1),), {"turbo": 10.0}) == {"turbo": pytest.approx(8.0)}
    roster = Roster(1e9, {"turbo": 10.0})
    roster.reported(report(step_s=(*FAST, ("turbo", 8, 0.1))), 0.0)  # a step as long as the large model's
    roster.judge(0.0, lambda _: True)
    for _ in range(60):
        roster.finished(JobSucceeded("j", 1, "a", "turbo", 80))
    roster.judge(60.0, lambda _: True)
    assert roster.workers()[0].credit == 1.0
    assert roster._heard["a"].evidence.steps == pytest.approx(60 * 80)
    turbo = replace(report(step_s=(("turbo", 8, 0.1),)), model="turbo")
    alone = Roster(1e9, {"turbo": 10.0})
    alone.reported(turbo, 0.0)
    alone.judge(0.0, lambda _: True)
    for _ in range(60):
        alone.finished(JobSucceeded("j", 1, "a", "turbo", 80))
    alone.judge(60.0, lambda _: True)
    assert alone.workers()[0].credit == 1.0
    assert alone.workers()[0].rates["turbo"] == pytest.approx(8.0)


def test_who_has_nothing_to_do_is_no_liar() -> None:
    roster = Roster(1e9)
    roster.reported(report(), 0.0)
    looked(roster, 60, 0.2, pressed=False)
    assert roster.workers()[0].credit == 1.0


def test_evidence_begins_anew_with_another_model_and_after_a_while() -> None:
    old = Evidence("large", 0.0, 100)
    assert old.after("large", 10.0, pressed=True) is old
    assert old.after("small", 10.0, pressed=True) == Evidence("small", 10.0)
    assert old.after("large", 10.0, pressed=False) == Evidence("large", 10.0)
    assert old.after("large", 1000.0, pressed=True) == Evidence("large", 1000.0)
