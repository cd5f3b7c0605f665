"""The order across a lane: urgent jobs first, and nobody waits for ever."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.domain.urgency import AGED_EVERY, PATIENCE, UNKNOWN_AGED_S, Waiting, has_aged, most_urgent


def first(*jobs: Waiting, now: float = 0.0, aged_first: bool = False) -> str:
    return "".join(most_urgent(jobs, now, len(jobs), aged_first=aged_first))


def test_least_slack_goes_first_and_the_late_last() -> None:
    large = Waiting("a", 0.0, deadline_s=50.0, standalone_s=10.0)  # 40 s spare: slack 4
    small = Waiting("b", 0.0, deadline_s=20.0, standalone_s=2.0)  # 18 s: slack 9
    patient, late = Waiting("c", 0.0, standalone_s=1.0), Waiting("d", 0.0, deadline_s=5.0, standalone_s=9.0)
    assert first(small, late, patient, large) == "abcd"
    busy = replace(large, batched_s=60.0)  # alone in time, among others late by 10 s
    assert first(small, patient, busy) == "bca"
    assert first(small, Waiting("e", 0.0, priority=1), large) == "eab"


def test_a_job_that_has_aged_goes_first_where_it_is_its_turn() -> None:
    old, older = Waiting("b", 0.0, standalone_s=1.0), Waiting("a", 0.0, priority=-5, standalone_s=1.0)
    urgent = Waiting("c", 10.0, priority=9, deadline_s=20.0, standalone_s=4.0)
    assert first(old, older, urgent, now=11.0) == "cba"
    assert first(old, older, urgent, now=11.0, aged_first=True) == "abc"
    assert not has_aged(old, PATIENCE)
    unknown = Waiting("0", 0.0)
    assert first(unknown, urgent, now=UNKNOWN_AGED_S + 1, aged_first=True) == "0c"
    assert not has_aged(unknown, UNKNOWN_AGED_S)
    assert has_aged(unknown, UNKNOWN_AGED_S + 1)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**16), backlog=st.integers(0, 12))
def test_a_wait_is_bounded_against_any_stream_of_urgent_jobs(seed: int, backlog: int) -> None:
    """One claim in four takes the oldest job that has aged, so a job is claimed at the latest after it has aged and
    four claims for each job that is older."""
    draw = random.Random(seed)
    waiting = [Waiting(f"{n:06}", 0.0, draw.randint(-5, 5), standalone_s=1.0) for n in range(backlog)]
    victim = Waiting(f"{backlog:06}", 0.0, -100, standalone_s=3.0)
    waiting.append(victim)
    claims_after_aging = 0
    for claim in range(1000):
        now, number = float(claim), backlog + 1 + claim
        waiting.append(Waiting(f"{number:06}", now, 100, now + 5.0, 1.0))
        aged_first = claim % AGED_EVERY == AGED_EVERY - 1
        (taken,) = most_urgent(waiting, now, 1, aged_first=aged_first)
        waiting = [one for one in waiting if one.id != taken]
        claims_after_aging += has_aged(victim, now)
        if taken == victim.id:
            assert claims_after_aging <= AGED_EVERY * (backlog + 1)
            return
    raise AssertionError("the job waited for ever")
