"""A job that kills its workers is found; one that other things kill is not condemned."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gpu_worker.jobs.crash_evidence import (
    CRASHES_ALONE,
    CRASHES_TOGETHER,
    chance,
    condemned,
    without,
)
from shared.catalog.jobs.sweeping import Fleet
from shared.domain.types import Job, JobState, Plan, PlanSource, Request, Size

REQUEST = Request(prompt="a fox", size=Size(64, 64), steps=50, guidance=2.0, seed=1)
JOB = Job("j", REQUEST, Plan(PlanSource.NOISE, "large"), JobState.RUNNING)
NEW = Fleet(0, 0.0)
"""A deployment without a history."""
FULL_RUN = 33 / (3 * 495.0)
"""Crashes per worker-second of the full fault run with 111 kills: 33 of 3 workers in 495 s (docs/fault-tests.md)."""


def suspect(alone: int, alone_s: float, together: int = CRASHES_TOGETHER) -> Job:
    return replace(JOB, crashes=together + alone, crashes_alone=alone, alone_s=alone_s, exposed_s=alone_s)


@given(st.integers(1, 12), st.integers(0, 300), st.floats(0.001, 0.999))
def test_the_chance_is_binomial(crashes: int, others: int, share: float) -> None:
    total = crashes + others
    exact = math.fsum(
        math.comb(total, count) * share**count * (1 - share) ** (total - count) for count in range(crashes, total + 1)
    )
    assert chance(crashes, share, Fleet(others, 1 - share)) == pytest.approx(exact, abs=1e-9)


def test_a_rate_that_is_known_well_makes_it_poissons() -> None:
    """Five where one is expected: .00366."""
    assert chance(5, 1.0, Fleet(100_000, 100_000.0)) == pytest.approx(0.003660, abs=1e-5)


@given(st.integers(1, 50), st.floats(0, 500), st.floats(0, 500), st.integers(0, 1000), st.floats(0, 1e6))
def test_more_crashes_are_less_likely_and_more_seconds_bring_more(
    crashes: int, fewer: float, more: float, others: int, busy_s: float
) -> None:
    fewer, more = sorted((fewer, more))
    fleet = Fleet(others, busy_s)
    assert 0 <= chance(crashes, fewer, fleet) <= chance(crashes, more, fleet) + 1e-9 <= 1 + 1e-8
    assert chance(crashes + 1, more, fleet) <= chance(crashes, more, fleet) + 1e-9


FLEETS = st.lists(st.builds(Fleet, st.integers(0, 1000), st.floats(0, 1e6)), min_size=1, max_size=2)


@given(st.integers(0, CRASHES_ALONE - 1), st.integers(0, 100), st.floats(0, 1e4), FLEETS)
def test_fewer_than_three_crashes_alone_condemn_nobody(
    alone: int, together: int, alone_s: float, fleets: list[Fleet]
) -> None:
    assert not condemned(suspect(alone, alone_s, together), fleets)


@given(st.integers(0, 20), st.floats(0, 1e4), st.floats(0, 1e4), FLEETS, st.integers(0, 100))
def test_longer_alone_or_more_crashes_of_others_speak_for_a_job(
    alone: int, shorter: float, longer: float, fleets: list[Fleet], more: int
) -> None:
    shorter, longer = sorted((shorter, longer))
    job, worse = suspect(alone, shorter), [replace(one, crashes=one.crashes + more) for one in fleets]
    if not condemned(job, fleets):
        assert not condemned(replace(job, alone_s=longer), fleets)
        assert not condemned(job, worse)


def test_what_crashed_with_the_job_is_not_held_against_the_fleet() -> None:
    job = suspect(5, 50.0)
    assert without(job, Fleet(7, 1050.0)) == Fleet(0, 1000.0)
    assert without(job, Fleet(9, 1050.0)) == Fleet(2, 1000.0)
    assert without(job, Fleet(3, 10.0)) == NEW  # the job's life is longer than what is remembered of the fleet


@pytest.mark.parametrize("busy_s", [0.0, 600.0, 1e6])
@pytest.mark.parametrize("kills_after_s", [0.0, 1.0, 10.0, 600.0, 3600.0])
def test_a_quiet_fleet_finds_a_job_that_kills_its_worker_within_ten_crashes(
    busy_s: float, kills_after_s: float
) -> None:
    """Without a history, with one of ten minutes, with one of days; all of its crashes were this job's."""
    assert CRASHES_TOGETHER + _found_after(kills_after_s, Fleet(0, busy_s)) <= 10


def _found_after(kills_after_s: float, others: Fleet) -> int:
    """Crashes alone until a job that kills its worker after so many seconds is found."""
    for alone in range(1, 100):
        job = suspect(alone, alone * kills_after_s)
        fleet = Fleet(others.crashes + job.crashes, others.busy_s + job.exposed_s)
        if condemned(job, [fleet, fleet]):
            return alone
    raise AssertionError("never found")


@pytest.mark.parametrize("kills", [1, 3])
def test_a_job_that_kills_at_once_is_found_within_ten_crashes_where_workers_are_killed_often(kills: int) -> None:
    fleet, each_s = Fleet(round(300 * kills * FULL_RUN), 300.0), 0.1 + 6.0 / 6  # a lease of 6 s
    assert CRASHES_TOGETHER + _found_after(each_s, fleet) <= 10


def test_the_reason_says_how_often_how_long_and_how_likely_that_was() -> None:
    said = condemned(suspect(4, 864.0), [NEW])
    assert said == (
        "its worker crashed 6 times, 4 of them in the 864 s that the job ran alone; "
        "at the crash rate of the other workers, the probability of this is 6e-10"
    )


@pytest.mark.parametrize(("workers", "kills"), [(3, 1), (3, 3), (3, 9), (2, 3), (10, 3)])
def test_no_healthy_job_is_condemned_where_workers_are_killed_at_random(workers: int, kills: int) -> None:
    """Twenty new deployments with 1,000 jobs each, long and short ones, killed as often as a full fault run, three
    times and nine times as often."""
    chances = random.Random(workers * 100 + kills)
    looks = condemnations = 0
    for _ in range(20):
        fleet = _Fleet(chances, workers, kills * FULL_RUN)
        for _ in range(1000):
            looked, found = fleet.run(chances.choice((2.0, 5.0, 15.0, 60.0)))
            looks, condemnations = looks + looked, condemnations + found
    assert looks > (2000 if kills > 1 else 50), "too few jobs crashed three times alone"
    assert condemnations == 0


class _Fleet:
    """Workers that are killed at random, with a lease of 6 s, renewed every 2 s, and restarts of 5 s."""

    def __init__(self, chances: random.Random, workers: int, rate: float) -> None:
        self._chances, self._workers, self._rate = chances, workers, rate
        self._before = NEW
        """What all workers did before the job that runs now."""

    def run(self, work_s: float) -> tuple[int, bool]:
        """How often a job that needs so many seconds was judged, and whether it was condemned. Each crash costs its
        last second or less (a checkpoint)."""
        job, others, left_s, looks = JOB, NEW, work_s, 0
        while True:
            crash_s = self._chances.expovariate(self._rate)
            crashed, held_s = crash_s < left_s, min(crash_s, left_s)
            others = self._beside(others, held_s + 11.0 * crashed)
            seen_s = held_s // 2.0 * 2.0 + 1.0 if crashed else held_s  # up to the last renewal, and half of one
            alone = job.crashes >= CRASHES_TOGETHER
            job = replace(job, exposed_s=job.exposed_s + seen_s, alone_s=job.alone_s + alone * seen_s)
            own = Fleet(job.crashes + others.crashes, job.exposed_s + others.busy_s)
            day = Fleet(self._before.crashes + own.crashes, self._before.busy_s + own.busy_s)
            if not crashed:
                self._before = day
                return looks, False
            left_s -= max(held_s - self._chances.random(), 0.0)
            job = replace(job, crashes=job.crashes + 1, crashes_alone=job.crashes_alone + alone)
            looks += job.crashes_alone >= CRASHES_ALONE
            crashed_too = [replace(span, crashes=span.crashes + 1) for span in (own, day)]
            if condemned(job, crashed_too):
                return looks, True

    def _beside(self, others: Fleet, seconds: float) -> Fleet:
        """The other workers go on for so many seconds."""
        busy_s = (self._workers - 1) * seconds
        return Fleet(others.crashes + _poisson(self._chances, self._rate * busy_s), others.busy_s + busy_s)


def _poisson(chances: random.Random, expected: float) -> int:
    count, left = 0, chances.expovariate(1.0)
    while left < expected:
        count, left = count + 1, left + chances.expovariate(1.0)
    return count
