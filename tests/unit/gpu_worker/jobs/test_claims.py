"""Which rows a worker may hand back as its own: those of a claim that got no answer, and of no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from services.gpu_worker.jobs.claims import Claims
from shared.catalog import Jobs, open_catalog
from shared.domain.errors import UnavailableError
from shared.domain.types import Job, JobState, Plan, PlanSource, Request, Size

REQUEST = Request(prompt="a fox", size=Size(64, 64), steps=10, guidance=2.0, seed=1)
JOB = Job("job", REQUEST, Plan(PlanSource.NOISE, "large"), JobState.QUEUED, lane="generate.large")


@pytest.fixture
async def jobs() -> AsyncIterator[Jobs]:
    catalog = await open_catalog("sqlite+aiosqlite:///")
    await catalog.jobs.accept(JOB)
    yield catalog.jobs
    await catalog.close()


async def _unanswered(claims: Claims, jobs: Jobs, *, committed: bool) -> None:
    async def breaks(*given: str, lease_s: float = 60.0) -> Job | None:
        assert not committed or await Jobs.claim(jobs, given[0], given[1], lease_s)
        raise UnavailableError("connection lost")

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(jobs, "claim", lambda job_id, holder, lease_s, alone: breaks(job_id, holder, lease_s=lease_s))
        with pytest.raises(UnavailableError):
            await claims.claim("job")


async def test_a_row_that_an_unanswered_claim_left_running_is_queued_again(jobs: Jobs) -> None:
    claims = Claims(jobs, "host-1", 60.0)
    await _unanswered(claims, jobs, committed=True)
    with claims.holding("job"):  # another delivery claims it, or draws it
        assert not await claims.hand_back(await jobs.get("job"))
    assert await claims.hand_back(await jobs.get("job"))
    row = await jobs.get("job")
    assert (row.state, row.attempt, row.crashes, row.failures) == (JobState.QUEUED, 1, 0, 0)
    assert not await claims.hand_back(row)


async def test_it_is_queued_again_wherever_its_task_went(jobs: Jobs) -> None:
    """Another worker that has the task waits for the lease, which nobody renews."""
    claims, other = Claims(jobs, "host-1", 60.0), Claims(jobs, "host-2", 60.0)
    await _unanswered(claims, jobs, committed=True)
    with claims.holding("job"):
        await claims.repair()
    assert await other.claim("job") is None
    assert not await other.hand_back(await jobs.get("job"))
    await claims.repair()
    again = await other.claim("job")
    assert again is not None
    assert (again.attempt, again.crashes) == (2, 0)
    await claims.repair()
    assert (await jobs.get("job")).state is JobState.RUNNING


async def test_a_claim_is_looked_for_until_it_can_come_no_more(jobs: Jobs) -> None:
    """What was cut off on its way may arrive after the look."""
    claims = Claims(jobs, "host-1", 0.2)
    await _unanswered(claims, jobs, committed=False)
    await claims.repair()
    assert await Jobs.claim(jobs, "job", claims.holder, 60.0)
    await claims.repair()
    assert (await jobs.get("job")).state is JobState.QUEUED
    await asyncio.sleep(0.25)
    await claims.repair()
    assert await Jobs.claim(jobs, "job", claims.holder, 60.0)
    await claims.repair()
    assert (await jobs.get("job")).state is JobState.RUNNING  # nothing of ours can be on its way by now


async def test_a_row_whose_claim_was_answered_is_left_to_its_lease(jobs: Jobs) -> None:
    """Whatever became of its drawing, a bug say, must count, or it would be drawn for ever."""
    claims = Claims(jobs, "host-1", 60.0)
    await _unanswered(claims, jobs, committed=False)
    assert await claims.claim("job")
    assert not await claims.hand_back(await jobs.get("job"))


async def test_a_row_of_the_process_before_under_the_same_name_is_its_crash(jobs: Jobs) -> None:
    """A container that is started again has its host and its pid."""
    assert await Claims(jobs, "host-1", 60.0).claim("job")
    claims = Claims(jobs, "host-1", 60.0)
    await _unanswered(claims, jobs, committed=False)
    assert await claims.claim("job") is None
    assert not await claims.hand_back(await jobs.get("job"))
