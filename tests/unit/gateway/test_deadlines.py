"""When a job is given up, and what its caller is told."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from services.gateway import deadlines
from services.gateway.deadlines import DropTimers, dropped_because, late_because, outcome_error, time_left_s
from shared.domain.errors import (
    CancelledError,
    DeadlineError,
    JobFailedError,
    NotFoundError,
    UnavailableError,
)
from shared.domain.types import Job, JobState, Plan, PlanSource, Request, Size

REQUEST = Request(
    prompt="a fox", size=Size(64, 64), steps=10, guidance=2.0, seed=1, deadline_s=5.0, drop_if_late=True
)  # fmt: skip
JOB = Job("j1", REQUEST, Plan(PlanSource.NOISE, "large"), JobState.QUEUED, created_at=100.0, updated_at=100.0)


def test_only_jobs_that_asked_for_it_are_dropped() -> None:
    assert time_left_s(JOB, 103.0) == 2.0
    assert time_left_s(replace(JOB, request=replace(REQUEST, drop_if_late=False)), 103.0) is None
    assert time_left_s(replace(JOB, request=replace(REQUEST, deadline_s=None)), 103.0) is None
    assert time_left_s(replace(JOB, state=JobState.SUCCEEDED), 103.0) is None


def test_what_a_final_state_means_for_who_waits() -> None:
    assert outcome_error(replace(JOB, state=JobState.SUCCEEDED)) is None
    late = replace(JOB, updated_at=105.5)
    assert isinstance(outcome_error(replace(late, state=JobState.CANCELLED)), DeadlineError)
    assert isinstance(outcome_error(replace(late, state=JobState.FAILED)), DeadlineError)
    assert isinstance(outcome_error(replace(JOB, state=JobState.CANCELLED)), CancelledError)
    assert dropped_because(replace(late, state=JobState.CANCELLED)) == "deadline_s: 5 s passed before the job finished"
    for kept in (late, replace(late, state=JobState.SUCCEEDED), replace(JOB, state=JobState.CANCELLED)):
        assert dropped_because(kept) == ""
    failed = outcome_error(replace(JOB, state=JobState.FAILED, error="out of memory"))
    assert type(failed) is JobFailedError
    assert str(failed) == "job j1 failed: out of memory"


def test_attempts_are_counted_by_what_went_wrong_and_not_by_claims() -> None:
    thrice = replace(JOB, state=JobState.FAILED, attempt=7, failures=3, error="out of memory")
    assert str(outcome_error(thrice)) == "job j1 failed after 3 attempts: out of memory"
    cursed = replace(JOB, state=JobState.FAILED, attempt=10, failures=1, crashes=5, error="its worker crashed 5 times")
    assert str(outcome_error(cursed)) == "job j1 failed: its worker crashed 5 times"


def test_a_picture_that_came_late_says_how_late() -> None:
    drawn = replace(JOB, state=JobState.SUCCEEDED, updated_at=128.8)
    patient = replace(REQUEST, drop_if_late=False)
    said = "deadline_s: finished 23.80 s after the deadline of 5 s"
    assert late_because(replace(drawn, request=patient)) == f"{said}; set drop_if_late to cancel such requests"
    assert late_because(drawn) == said  # it was done before anyone could drop it
    in_time = replace(drawn, updated_at=104.0)
    without = replace(drawn, request=replace(patient, deadline_s=None))
    for one in (in_time, without, replace(drawn, state=JobState.CANCELLED), replace(drawn, state=JobState.RUNNING)):
        assert late_because(one) == ""


async def test_a_timer_fires_once_unless_the_job_ends_first() -> None:
    dropped: list[str] = []

    async def drop(job_id: str) -> None:
        dropped.append(job_id)

    timers = DropTimers(drop)
    timers.arm(JOB, now=104.98)
    timers.arm(replace(JOB, id="ended"), now=104.98)
    timers.arm(replace(JOB, id="too late already"), now=200.0)
    timers.disarm("ended")
    await asyncio.sleep(0.15)
    timers.close()
    assert sorted(dropped) == ["j1", "too late already"]


async def test_a_job_that_cannot_be_dropped_yet_is_dropped_once_the_catalog_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it would be drawn although its client asked for the contrary, and the error be nobody's."""
    monkeypatch.setattr(deadlines, "AGAIN_S", 0.01)
    asked: list[str] = []
    dropped = asyncio.Event()

    async def drop(job_id: str) -> None:
        asked.append(job_id)
        if job_id == "expired":
            raise NotFoundError("no such job")
        if len(asked) < 4:
            raise UnavailableError("the catalog does not answer", retry_after_s=1.0)
        dropped.set()

    timers = DropTimers(drop)
    timers.drop_soon("expired")
    timers.arm(JOB, now=200.0)
    await asyncio.wait_for(dropped.wait(), 20)
    timers.close()
    assert asked == ["expired", "j1", "j1", "j1"]
