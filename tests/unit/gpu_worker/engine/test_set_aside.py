"""Rows set aside for an urgent task: a deadline is saved, none is lost, and nobody waits for ever."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.gpu_worker.engine.finishes import Timed, finishes
from services.gpu_worker.engine.scheduler import Decision
from services.gpu_worker.engine.slack import decide_by_slack
from services.gpu_worker.engine.step_seconds import StepSeconds
from shared.models.standalone import Line
from shared.models.step_regression import mix_of

KINDS = [((64, 64, 1), 1), ((96, 64, 1), 1), ((96, 96, 1), 2)]
SECONDS = {"m": StepSeconds(Line(1.0, 1.0 / 4096), decode_pixel_s=1.0 / 4096, together=True)}
"""A step of one pass of 64×64 takes 2 s, of two 3 s; decoding takes 1 s."""
NOBODY: frozenset[str] = frozenset()


def one(name: str, *, arrived: int = 0, steps: int = 10, **fields: object) -> Timed:
    return replace(Timed(name, "m", KINDS[0], steps, steps, since=0.0, arrived=arrived), **fields)  # type: ignore[arg-type]


def decided(
    waiting: Sequence[Timed], running: Sequence[Timed], aside: Sequence[Timed] = (), *, now: float = 0.0, rows: int = 2
) -> Decision:
    return decide_by_slack(waiting, running, NOBODY, now, rows, SECONDS, aside=aside, may_set_aside=True)


PATIENT, LOOSE, URGENT = one("patient", steps=40), one("loose", deadline_at=500.0), one("urgent", deadline_at=45.0)
"""Two rows beside each other take 3 s a step: 31 s and a decoding for `urgent`."""


def test_the_row_with_most_to_spare_makes_room() -> None:
    decision = decided([URGENT], [PATIENT, LOOSE])
    assert (decision.join, decision.aside) == (("urgent",), ("patient",))


def test_nothing_is_set_aside_without_need_or_without_use() -> None:
    assert decided([replace(URGENT, deadline_at=200.0)], [PATIENT, LOOSE]) == Decision()  # it can wait for `loose`
    assert decided([replace(URGENT, deadline_at=20.0)], [PATIENT, LOOSE]) == Decision()  # it is late anyway
    assert decided([replace(URGENT, deadline_at=None)], [PATIENT, LOOSE]) == Decision()
    assert decided([URGENT], [replace(PATIENT, was_aside=True), replace(LOOSE, was_aside=True)]) == Decision()
    assert decide_by_slack([URGENT], [PATIENT, LOOSE], NOBODY, 0.0, 2, SECONDS) == Decision()  # switched off


def test_no_row_in_time_becomes_late() -> None:
    tight = one("tight", deadline_at=32.5)  # alone with `other` 31 s and a decoding
    other = one("other", deadline_at=60.0)  # set aside for `urgent` it would end after 31 + 20 s and more
    assert decided([URGENT], [tight, other]).aside == ("other",)
    assert decided([URGENT], [tight, replace(other, deadline_at=50.0)]) == Decision()


def test_rows_come_back_when_their_guest_has_left_and_nobody_joins_before() -> None:
    away = replace(PATIENT, was_aside=True, made_room_for="urgent")
    guest, waiting = replace(URGENT, left=5), [one("next", deadline_at=1000.0)]
    assert decided(waiting, [guest, LOOSE], [away], now=15.0) == Decision()  # no row is free
    assert decided(waiting, [LOOSE], [away], now=32.0) == Decision(resume=("patient",))
    # earlier, where nobody becomes late by it
    assert decided(waiting, [guest], [away], now=15.0).resume == ("patient",)
    assert decided(waiting, [replace(guest, deadline_at=28.0)], [away], now=15.0) == Decision()


def test_a_late_row_that_is_aside_is_dropped() -> None:
    away = replace(PATIENT, made_room_for="urgent", deadline_at=5.0, drop_if_late=True)
    assert decided([], [URGENT], [away], now=6.0).late == ("patient",)


@dataclass
class Run:
    """A worker in virtual time whose steps take exactly what is predicted."""

    rows: int
    waiting: list[Timed]
    running: list[Timed] = field(default_factory=list)
    aside: list[Timed] = field(default_factory=list)
    now: float = 0.0
    ends: dict[str, float] = field(default_factory=dict)
    times_aside: dict[str, int] = field(default_factory=dict)

    def step(self, arrivals: Sequence[Timed]) -> list[str]:
        """One step; return the rows that were predicted on time when rows were set aside."""
        self.waiting += arrivals
        before = finishes(self.running, SECONDS)
        decision = decide_by_slack(
            self.waiting, self.running, NOBODY, self.now, self.rows, SECONDS, aside=self.aside, may_set_aside=True
        )
        promised = [
            row.id
            for row, end in zip(self.running, before, strict=True)
            if decision.aside and (row.deadline_at is None or self.now + end <= row.deadline_at)
        ] + list(decision.join if decision.aside else ())
        self.apply(decision)
        if self.running:
            self.now += SECONDS["m"].of(mix_of(row.kind for row in self.running))
            self.running = [replace(row, left=row.left - 1) for row in self.running]
            for row in [row for row in self.running if not row.left]:
                self.now += SECONDS["m"].decode_s(row.pixels)
                self.ends[row.id] = self.now
            self.running = [row for row in self.running if row.left]
        return promised

    def apply(self, decision: Decision) -> None:
        for name in decision.aside:
            self.times_aside[name] = self.times_aside.get(name, 0) + 1
        room = decision.join[0] if decision.aside else ""
        self.aside += [
            replace(row, was_aside=True, made_room_for=room) for row in self.running if row.id in decision.aside
        ]
        self.running = [row for row in self.running if row.id not in decision.aside]
        self.running += [row for row in self.aside if row.id in decision.resume]
        self.running += [row for row in self.waiting if row.id in decision.join]
        self.aside = [row for row in self.aside if row.id not in decision.resume]
        self.waiting = [row for row in self.waiting if row.id not in decision.join]


@settings(max_examples=40)
@example(seed=20096, rows=1)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 4))
def test_no_deadline_that_was_on_time_is_lost_and_all_finish(seed: int, rows: int) -> None:
    draw, made, run = random.Random(seed), 0, Run(rows, [])
    deadlines, promised = dict[str, float](), set[str]()
    while made < 12 or run.waiting or run.running or run.aside:
        arrivals = []
        while made < 12 and draw.random() < 0.4:
            kind, steps = draw.choice(KINDS), draw.randint(1, 12)
            limit = draw.choice([None, draw.uniform(10.0, 150.0)])
            task = one(str(made), arrived=made, steps=steps, kind=kind, since=run.now)
            arrivals.append(replace(task, deadline_at=None if limit is None else run.now + limit))
            deadlines[str(made)] = float("inf") if limit is None else run.now + limit
            made += 1
        promised.update(run.step(arrivals))
        if not (run.running or run.aside or run.waiting):  # idle until the next arrival
            run.now += 1.0
        assert len(run.running) <= rows
        assert run.now < 1e5, "somebody waits for ever"
    assert len(run.ends) == 12
    assert all(run.ends[name] <= deadlines[name] + 1e-6 for name in promised)
    assert all(times == 1 for times in run.times_aside.values())


def test_the_property_test_sees_rows_set_aside() -> None:
    """The random runs above do set rows aside; else they would show nothing."""
    counts = []
    for seed in range(40):
        draw, run = random.Random(seed), Run(2, [])
        for number in range(8):
            limit = run.now + draw.uniform(10.0, 80.0) if draw.random() < 0.6 else None
            run.step([one(str(number), arrived=number, steps=draw.randint(2, 12), since=run.now, deadline_at=limit)])
        counts.append(len(run.times_aside))
    assert sum(counts) >= 5


@pytest.mark.parametrize("rows", [1, 2])
def test_a_stream_of_urgent_tasks_does_not_keep_a_row_aside(rows: int) -> None:
    run = Run(rows, [replace(PATIENT, steps=10, left=10)])
    for number in range(200):
        run.step([one(f"u{number}", arrived=1 + number, steps=3, since=run.now, deadline_at=run.now + 9.0 * rows)])
        run.waiting = [task for task in run.waiting if task.deadline_at is None or task.deadline_at > run.now]
        if "patient" in run.ends:
            break
    assert "patient" in run.ends
    assert run.times_aside.get("patient", 0) <= 1
