"""The expiry of jobs: in bounded transactions between which others write, and never through the whole table."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from shared.catalog import Catalog
from shared.catalog.engines.around import DatabaseAround
from shared.catalog.engines.database import R, Ts
from shared.catalog.jobs.expiry import EXPIRED_AT_ONCE, _due, _expire
from shared.catalog.jobs.job_rows import row_of
from shared.catalog.tables import captured, idempotency_keys, jobs
from shared.domain.errors import NotFoundError
from shared.domain.ids import new_id
from shared.domain.types import JobState, Upload
from tests.contracts.catalog.conftest import plans
from tests.contracts.nouns import a_job, accepted

DAY_S = 86_400.0
OLD, RECENT = 1.0, 4e9
"""Unix seconds: long ago, and long after any test."""


def _ended(connection: sa.Connection, count: int, at: float, *, keys: bool = False) -> None:
    """That many cancelled jobs, last changed then, each named by an expired idempotency key if wanted."""
    row = row_of(dataclasses.replace(a_job(), state=JobState.CANCELLED))
    rows = [{**row, "id": new_id(), "created_at": at, "updated_at": at} for _ in range(count)]
    connection.execute(sa.insert(jobs), rows)
    if keys:
        named = [{"caller": "a", "key": one["id"], "body_hash": "", "job_id": one["id"]} for one in rows]
        connection.execute(sa.insert(idempotency_keys), [{**one, "expires_at": at} for one in named])


class Counting(DatabaseAround):
    """Counts the transactions that write, and lets another writer in before each."""

    def __init__(self, inner: Any, between: Callable[[], Any]) -> None:
        super().__init__(inner)
        self.writes = 0
        self._between = between

    async def write(
        self, operation: Callable[[sa.Connection, *Ts], R], *args: *Ts, durable: bool = True, row: bool = False
    ) -> R:
        self.writes += 1
        await self._between()
        return await super().write(operation, *args, durable=durable, row=row)


async def test_many_jobs_expire_in_several_transactions_between_which_others_write(catalog: Catalog) -> None:
    await catalog._database.write(_ended, 2 * EXPIRED_AT_ONCE + 1, OLD)
    left: list[int] = []

    async def another_writer() -> None:
        await accepted(catalog)
        left.append(len((await catalog.jobs.list(state=JobState.CANCELLED, limit=10_000))[0]))

    counting = Counting(catalog._database, another_writer)
    async with asyncio.timeout(60):
        assert await Catalog(counting).jobs.expire(DAY_S) == []
    assert counting.writes == 3
    assert left == [2 * EXPIRED_AT_ONCE + 1, EXPIRED_AT_ONCE + 1, 1]  # each was committed before the next began
    assert (await catalog.jobs.list(state=JobState.CANCELLED))[0] == []
    assert len((await catalog.jobs.list(limit=100))[0]) == 3


async def test_a_job_that_was_reopened_after_the_expiry_read_it_stays(catalog: Catalog) -> None:
    await catalog._database.write(_ended, 2, OLD)
    (reopened, gone), _ = await catalog.jobs.list(state=JobState.CANCELLED)

    def reopen(connection: sa.Connection) -> None:
        connection.execute(sa.update(jobs).where(jobs.c.id == reopened.id).values(state=JobState.QUEUED.value))
        latents = [{"key": f"states/{job.id}", "job_id": job.id} for job in (reopened, gone)]
        connection.execute(sa.insert(captured), latents)

    async def between() -> None:
        await catalog._database.write(reopen)

    dropped = await Catalog(Counting(catalog._database, between)).jobs.expire(DAY_S)
    assert dropped == [f"states/{gone.id}"]
    assert (await catalog.jobs.get(reopened.id)).state is JobState.QUEUED
    with pytest.raises(NotFoundError):
        await catalog.jobs.get(gone.id)


async def test_the_image_that_an_unfinished_job_began_with_goes_with_the_job(catalog: Catalog) -> None:
    """It stayed for the quarantine's days, and an erasure of its tenant could not find it any more."""
    for name, ended in (("cancelled", JobState.CANCELLED), ("made", JobState.SUCCEEDED)):
        began = dataclasses.replace(a_job(id=name).request, upload=Upload(f"uploads/{name}.png", "0" * 64))
        await catalog.jobs.accept(dataclasses.replace(a_job(id=name), request=began, state=ended))
    assert await catalog.jobs.expire(-1.0) == ["uploads/cancelled.png"]


async def test_jobs_that_waited_too_long_are_cancelled_and_no_others(catalog: Catalog) -> None:
    def age(connection: sa.Connection) -> None:
        connection.execute(sa.update(jobs).where(jobs.c.id != "young").values(created_at=OLD))

    for name in ("long", "running", "young"):
        await accepted(catalog, id=name)
    await catalog._database.write(age)
    assert await catalog.jobs.claim("running", "worker", 60.0) is not None
    assert await catalog.jobs.cancel_stale(2 * DAY_S) == ["long"]
    assert await catalog.jobs.cancel_stale(2 * DAY_S) == []
    found = await catalog.jobs.get("long")
    assert (found.state, found.error) == (JobState.CANCELLED, "waited for more than 2 days")
    assert (await catalog.jobs.get("running")).state is JobState.RUNNING
    assert (await catalog.jobs.get("young")).state is JobState.QUEUED


async def test_an_expiry_goes_on_past_jobs_that_only_another_version_can_read(catalog: Catalog) -> None:
    def spoil(connection: sa.Connection) -> None:
        _ended(connection, EXPIRED_AT_ONCE + 1, OLD)
        connection.execute(sa.update(jobs).values(request='{"newer": true}'))
        _ended(connection, 1, OLD + 1.0)

    def left(connection: sa.Connection) -> int:
        return int(connection.execute(sa.select(sa.func.count()).select_from(jobs)).scalar_one())

    await catalog._database.write(spoil)
    await catalog.jobs.expire(DAY_S)
    assert await catalog._database.read(left) == EXPIRED_AT_ONCE + 1


async def test_many_keys_expire_in_several_transactions(catalog: Catalog) -> None:
    def keys_left(connection: sa.Connection) -> int:
        return int(connection.execute(sa.select(sa.func.count()).select_from(idempotency_keys)).scalar_one())

    await catalog._database.write(lambda connection: _ended(connection, EXPIRED_AT_ONCE + 1, OLD, keys=True))
    jobs_kept = 1e12  # seconds: no job is as old
    due = await catalog._database.read(_due, jobs_kept, (0.0, ""))
    assert (due.ids, due.after) == ([], None)
    assert await catalog._database.write(_expire, due) == ([], True)  # there is more to do
    assert await catalog._database.read(keys_left) == 1
    assert await catalog.jobs.expire(jobs_kept) == []
    assert await catalog._database.read(keys_left) == 0
    assert len((await catalog.jobs.list(limit=10_000))[0]) == EXPIRED_AT_ONCE + 1


async def test_expiry_finds_old_jobs_and_keys_by_an_index(catalog: Catalog) -> None:
    def read(connection: sa.Connection) -> list[str]:
        _ended(connection, 3_000, RECENT, keys=True)
        _ended(connection, 3, OLD, keys=True)
        connection.exec_driver_sql("ANALYZE")
        deletions = list[str]()

        def searches(statement: str) -> bool:
            found = "updated_at" in statement or "expires_at" in statement
            deletions.extend([statement] if found and statement.startswith("DELETE") else [])
            return found

        with plans(connection, searches) as lines:
            _expire(connection, _due(connection, DAY_S, (0.0, "")))
        assert len(deletions) == 2
        return lines

    lines = await catalog._database.write(read)
    said = "\n".join(lines)
    assert "ix_jobs_ended" in said, said
    assert "ix_idempotency_keys_expires_at" in said, said
    whole = [line for line in lines if "Seq Scan" in line or line.strip().startswith("SCAN")]
    assert whole == [], said


async def test_the_oldest_jobs_of_a_tenant_beyond_its_limit_expire(catalog: Catalog) -> None:
    names = {"greedy": 5, "modest": 3, "free": 5}
    for at in range(5):
        for tenant, count in names.items():
            if at < count:
                job = await accepted(catalog, id=f"{tenant}{at}", tenant=tenant)
                await catalog.jobs.cancel(job.id)
    waiting = await accepted(catalog, id="waiting", tenant="greedy")
    assert await catalog.jobs.expire_beyond({"greedy": 3, "modest": 3}.get, older_than_s=60.0) == []
    assert len((await catalog.jobs.list(limit=100))[0]) == 14  # none ended so long ago
    assert await catalog.jobs.expire_beyond({"greedy": 3, "modest": 3}.get, older_than_s=-1.0) == []
    left = {job.id for job in (await catalog.jobs.list(limit=100))[0]}
    gone = {"greedy0", "greedy1"}
    assert left == {f"{tenant}{at}" for tenant, count in names.items() for at in range(count)} - gone | {waiting.id}


async def test_many_jobs_beyond_a_limit_expire_in_several_transactions(catalog: Catalog) -> None:
    await catalog._database.write(_ended, EXPIRED_AT_ONCE + 1, OLD)
    await catalog._database.write(_ended, 2, OLD + 1.0)
    assert await catalog.jobs.expire_beyond(lambda _: 2, older_than_s=60.0) == []
    assert len((await catalog.jobs.list(limit=10_000))[0]) == 2
