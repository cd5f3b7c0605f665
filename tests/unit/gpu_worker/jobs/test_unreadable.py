"""A task whose row only a newer version can read waits for a worker of that version, and nothing is held against it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import sqlalchemy as sa

from services.gpu_worker.jobs import endings as endings_module
from shared.catalog.tables import jobs
from shared.domain.messages import JobFailed
from shared.domain.types import JobState
from tests.unit.gpu_worker.worker import WorkerBench


async def written(bench: WorkerBench, job_id: str, **columns: Any) -> None:
    def write(connection: sa.Connection) -> None:
        connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(**columns))

    await bench.backends.catalog._database.write(write)


async def row_of(bench: WorkerBench, job_id: str) -> Any:
    def read(connection: sa.Connection) -> Any:
        return connection.execute(sa.select(jobs).where(jobs.c.id == job_id)).one()

    return await bench.backends.catalog._database.read(read)


async def test_a_task_of_an_unreadable_row_comes_back_until_it_can_be_read(
    slow: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endings_module, "BUSY_RETRY_S", 0.01)
    tried, claim = [], slow.jobs.claim

    async def counted(*given: Any) -> Any:
        tried.append(given)
        return await claim(*given)

    monkeypatch.setattr(slow.jobs, "claim", counted)
    job = await slow.accept(steps=2)
    plan = (await row_of(slow, job.id)).plan
    await written(slow, job.id, plan=json.dumps(json.loads(plan) | {"source": "superposed"}))
    before = await row_of(slow, job.id)
    await slow.send(job)
    async with asyncio.timeout(20):
        while len(tried) < 60:  # more than a task may be rejected for its own sake
            await asyncio.sleep(0.005)
    assert await row_of(slow, job.id) == before
    assert slow.service._tasks.claims._unanswered == {}  # an answer, not a catalog that is away
    other = await slow.draw(steps=2)  # the worker stands aside for none of it
    assert other.state is JobState.SUCCEEDED
    await written(slow, job.id, plan=plan)
    drawn = await slow.final(job.id)
    assert (drawn.state, drawn.attempt, drawn.failures, drawn.crashes) == (JobState.SUCCEEDED, 1, 0, 0)
    assert await slow.backends.bus.dead_letters() == []
    assert slow.heard(JobFailed) == []


async def test_a_duplicate_of_a_row_that_became_unreadable_waits_too(
    slow: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endings_module, "BUSY_RETRY_S", 0.01)
    job = await slow.draw(steps=2)
    await slow.idle()
    result = (await row_of(slow, job.id)).result
    await written(slow, job.id, result=json.dumps(json.loads(result) | {"steps_run": "many"}))
    before = await row_of(slow, job.id)
    await slow.send(job)
    await asyncio.sleep(0.2)
    assert await row_of(slow, job.id) == before
    await written(slow, job.id, result=result)
    await slow.idle()
    assert (await slow.final(job.id)).attempt == 1
    assert await slow.backends.bus.dead_letters() == []
