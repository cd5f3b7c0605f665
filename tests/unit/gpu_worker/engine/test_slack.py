"""Who joins by slack: urgency, deadlines of running rows, benefit and ageing; without torch, threads or real time."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gpu_worker.engine.finishes import Timed, finishes
from services.gpu_worker.engine.scheduler import decide
from services.gpu_worker.engine.slack import PATIENCE, decide_by_slack
from services.gpu_worker.engine.step_seconds import StepSeconds
from shared.models.standalone import Line
from shared.models.step_regression import mix_of

NOBODY: frozenset[str] = frozenset()
SMALL, WIDE = ((64, 64, 1), 1), ((96, 64, 1), 1)
PIXEL_S = 1.0 / 4096
"""One pass of 64×64 alone takes 10 + 1 s; of 96×64, 10 + 1.5 s. Passes of one size share the 10 s."""


SLOWEST_S = 2 * 10 + 4 * 3
"""Seconds of a step of two sizes and four rows, each of at most two passes (2 or 3 s)."""


SECONDS = {name: StepSeconds(Line(10.0, PIXEL_S)) for name in ("large", "clips")}


def one(name: str, *, arrived: int = 0, steps: int = 10, left: int | None = None, **fields: object) -> Timed:
    found = Timed(name, "large", SMALL, steps, steps if left is None else left, since=0.0, arrived=arrived)
    return replace(found, **fields)  # type: ignore[arg-type]


def joined(waiting: Sequence[Timed], running: Sequence[Timed] = (), *, now: float = 0.0, rows: int = 4) -> list[str]:
    return list(decide_by_slack(waiting, running, NOBODY, now, rows, SECONDS).join)


def test_the_least_slack_joins_first_not_the_earliest_deadline() -> None:
    near = one("near", arrived=1, steps=1, deadline_at=200.0)  # 189 s to spare, 17 times its 11 s
    urgent = one("urgent", arrived=2, steps=20, deadline_at=300.0)  # 80 s to spare, .4 times its 220 s
    assert joined([near, urgent], rows=1) == ["urgent"]
    assert decide([near, urgent], [], NOBODY, 0.0, 1).join == ("near",)


def test_priority_comes_before_slack() -> None:
    urgent, first = one("urgent", deadline_at=111.0), one("first", arrived=2, priority=1)
    assert joined([urgent, first], rows=1) == ["first"]


def test_a_running_row_is_not_made_late() -> None:
    tight = one("tight", deadline_at=111.0)  # alone 110 s, with another 120 s
    loose = replace(tight, deadline_at=125.0)
    assert joined([one("b")], [tight]) == []
    assert joined([one("b")], [loose]) == ["b"]
    assert joined([one("b")], [replace(tight, deadline_at=100.0)]) == ["b"]  # it is late anyway


def test_every_running_row_is_tested_not_only_the_one_of_least_slack() -> None:
    least = one("least", steps=1000, left=10, deadline_at=140.0)  # 20 s, .002 of its standalone time
    spare = one("spare", deadline_at=125.0)  # 5 s, .05 of its standalone time; with a third row 130 s
    assert joined([one("b")], [least, spare]) == []
    assert joined([one("b")], [least]) == ["b"]


def test_rows_that_leave_soon_do_not_make_a_candidate_late() -> None:
    ending = one("ending", left=1, kind=WIDE)
    tight = one("tight", deadline_at=125.0)  # 22.5 s for the first step, then 9 · 11 s
    assert finishes([ending, tight], SECONDS) == pytest.approx([22.5, 121.5])
    assert joined([one("other", deadline_at=500.0), tight], [ending], rows=2) == ["tight"]


def test_beside_a_deadline_one_joins_where_throughput_grows_and_waits_where_it_does_not() -> None:
    same, other = one("same"), one("other", kind=WIDE)
    running = one("running", deadline_at=1000.0)
    assert joined([same], [running]) == ["same"]  # (11 + 11) / 12
    assert joined([other], [running]) == []  # (11 + 11.5) / 22.5: two sizes, two batches
    assert joined([replace(other, deadline_at=1000.0)], [replace(running, deadline_at=None)]) == ["other"]


def test_who_waits_for_a_gain_is_not_overtaken_by_its_own_model_but_by_others() -> None:
    waiting = [one("other", kind=WIDE, arrived=1), one("same", arrived=2), one("clip", model="clips", arrived=3)]
    assert joined(waiting, [one("running", deadline_at=1000.0)]) == ["clip"]


def test_the_late_come_last_and_are_not_dropped() -> None:
    late, plain, due = one("late", arrived=1, deadline_at=50.0), one("plain", arrived=2), one("due", deadline_at=500.0)
    assert joined([late, plain, due], rows=2) == ["due", "plain"]
    assert joined([late]) == ["late"]


def test_a_hopeless_one_is_not_started_beside_others_if_it_asked_for_that() -> None:
    hopeless, running = one("hopeless", deadline_at=50.0, drop_if_late=True), one("running")
    assert joined([hopeless], [running]) == []
    assert joined([hopeless, one("b")]) == ["b"]
    assert joined([replace(hopeless, drop_if_late=False)], [running]) == ["hopeless"]
    assert joined([hopeless]) == ["hopeless"]  # an idle worker tries
    assert decide_by_slack([hopeless], [running], NOBODY, 51.0, 4, SECONDS).late == ("hopeless",)


def test_the_aged_go_first_up_to_their_share() -> None:
    now = PATIENCE * 110 + 1
    old = [one(f"old{n}", arrived=n, deadline_at=5.0) for n in range(3)]
    due = [one(f"due{n}", arrived=10 + n, since=now, deadline_at=now + 900 + n) for n in range(8)]
    assert joined([*due, *old], now=now, rows=8) == ["old0", "old1", *(f"due{n}" for n in range(6))]
    riding = [replace(each, aged=True) for each in old[:2]]
    assert joined([*due, old[2]], riding, now=now, rows=8) == [f"due{n}" for n in range(6)]


def test_alone_waits_for_an_empty_batch_and_is_not_overtaken_once_first() -> None:
    lonely = one("lonely", alone=True)
    assert joined([lonely, one("b", arrived=1)], [one("x")]) == []
    assert joined([lonely, one("b", arrived=1)]) == ["lonely"]
    assert joined([one("b")], [replace(lonely)]) == []


def test_cancelled_and_overdue_tasks_leave_and_free_their_rows() -> None:
    running = [one("a"), one("b", deadline_at=1.0, drop_if_late=True)]
    decision = decide_by_slack([one("c")], running, frozenset({"a"}), 2.0, 2, SECONDS)
    assert (decision.cancel, decision.late, decision.join) == (("a",), ("b",), ("c",))


def test_two_models_take_twice_as_long() -> None:
    rows = [one("image"), one("clip", model="clips", steps=5)]
    assert finishes(rows, SECONDS) == pytest.approx([220.0, 110.0])


TASKS = st.builds(
    one,
    st.uuids().map(str),
    arrived=st.integers(0, 99),
    steps=st.integers(1, 12),
    kind=st.sampled_from([SMALL, WIDE, (SMALL[0], 2)]),
    model=st.sampled_from(["large", "large", "clips"]),
    frames=st.integers(1, 3),
    priority=st.integers(-1, 1),
    deadline_at=st.none() | st.floats(0, 900),
    drop_if_late=st.booleans(),
    alone=st.sampled_from([False, False, False, True]),
)


@given(waiting=st.lists(TASKS, max_size=8), running=st.lists(TASKS, max_size=4), now=st.floats(0, 3000))
def test_nobody_joins_in_excess_or_at_the_cost_of_a_deadline(
    waiting: list[Timed], running: list[Timed], now: float
) -> None:
    decision = decide_by_slack(waiting, running, NOBODY, now, 4, SECONDS)
    staying = [row for row in running if row.id not in decision.late]
    by_id = {task.id: task for task in waiting}
    joining = [by_id[name] for name in decision.join]
    assert len(staying) + len(joining) <= max(4, len(staying))
    assert not {*decision.join} & {*decision.late}
    before, after = finishes(staying, SECONDS), finishes([*staying, *joining], SECONDS)
    for row, then, later in zip(staying, before, after, strict=False):
        in_time = row.deadline_at is not None and now + then <= row.deadline_at
        assert not in_time or now + later <= (row.deadline_at or math.inf)
    if any(task.alone for task in joining):
        assert len(joining) + len(staying) == 1


@given(
    waiting=st.lists(TASKS, max_size=8),
    running=st.lists(TASKS, max_size=4),
    most=st.sampled_from([math.inf, 10_000, 15_000]),
)
def test_without_deadlines_it_decides_as_by_priority(waiting: list[Timed], running: list[Timed], most: float) -> None:
    waiting, running = ([replace(task, deadline_at=None) for task in tasks] for tasks in (waiting, running))
    expected = decide(waiting, running, NOBODY, 1.0, 4, most)
    assert decide_by_slack(waiting, running, NOBODY, 1.0, 4, SECONDS, most) == expected


Arrival = tuple[float, Timed]


@settings(max_examples=8)
@given(
    stream=st.lists(st.tuples(st.floats(0, 40), TASKS), min_size=1, max_size=3),
    rows=st.integers(1, 4),
)
def test_nobody_waits_without_bound_and_who_joins_in_time_stays_in_time(
    stream: list[tuple[float, Timed]], rows: int
) -> None:
    """A task joins at the latest when all work that was there once it aged is done, whatever arrives after it."""
    at, arrivals = 600.0, list[Arrival]()  # when the rows are full
    for number, (gap, task) in enumerate(stream):
        at += gap
        deadline = None if task.deadline_at is None else at + task.deadline_at
        fields = {"frames": 1, "alone": False, "drop_if_late": False, "model": "large"}
        task = replace(task, id=str(number), arrived=number, since=at, deadline_at=deadline, **fields)  # type: ignore[arg-type]
        arrivals.append((at, task))
    urgent = [  # they fill the rows for hours, with more priority and time enough
        (15.0 * n, one(f"urgent{n}", arrived=1000 + n, since=15.0 * n, deadline_at=15.0 * n + 9000, priority=2))
        for n in range(160)
    ]
    finished, late = _run(sorted([*arrivals, *urgent], key=lambda pair: pair[0]), rows)
    for since, task in arrivals:
        alone_s = task.steps * SECONDS["large"].of(mix_of([task.kind]))
        work_s = 2 * 12 * SLOWEST_S * len(arrivals)  # one after the other, each after the batch that it would make late
        assert finished[task.id] - since <= PATIENCE * alone_s + work_s
    assert not late


def _run(arrivals: Sequence[Arrival], rows: int) -> tuple[dict[str, float], set[str]]:
    """Serve in virtual time with exact predictions; return each task's end, and those that joined in time and ended
    late."""
    now, waiting, running = 0.0, list[Timed](), list[Timed]()
    finished, on_time, late, coming = dict[str, float](), set[str](), set[str](), list(arrivals)
    while coming or waiting or running:
        while coming and coming[0][0] <= now:
            waiting.append(coming.pop(0)[1])
        decision = decide_by_slack(waiting, running, NOBODY, now, rows, SECONDS)
        join = {*decision.join}
        running += [replace(task, aged=task.id in decision.aged) for task in waiting if task.id in join]
        waiting = [task for task in waiting if task.id not in join]
        if not running:
            assert not waiting, "an empty batch takes the first"
            now = coming[0][0]
            continue
        ends = zip(running, finishes(running, SECONDS), strict=True)
        on_time |= {row.id for row, end in ends if row.deadline_at and row.id in join and now + end <= row.deadline_at}
        now += SECONDS["large"].of(mix_of(row.kind for row in running))
        running = [replace(row, left=row.left - 1) for row in running]
        for row in [row for row in running if not row.left]:
            finished[row.id] = now
            if row.id in on_time and row.deadline_at is not None and now > row.deadline_at + 1e-6:
                late.add(row.id)
        running = [row for row in running if row.left]
    return finished, late


def test_a_decision_about_a_thousand_waiting_takes_milliseconds_at_most() -> None:
    """The goal of 1 ms on a quiet machine is measured by bench.virtual_time.deadlines; here the bound is loose."""
    waiting = [
        one(
            str(n),
            arrived=n,
            kind=(SMALL, WIDE)[n % 2],
            steps=5 * (n % 10 + 1),
            deadline_at=5000.0 + 7 * (n * 37 % 1000),
        )
        for n in range(1000)
    ]
    running = [one(f"r{n}", left=n + 1) for n in range(7)]
    taken = []
    for _ in range(5):
        begun = time.perf_counter()
        decide_by_slack(waiting, running, NOBODY, 0.0, 8, SECONDS)
        taken.append(time.perf_counter() - begun)
    assert min(taken) < 0.02
