"""What the catalog keeps about crashes: each job's seconds in a worker's hands, and all workers' crashes."""

from __future__ import annotations

import asyncio
import time

import pytest
import sqlalchemy as sa

from shared.catalog import Catalog
from shared.domain.types import Job
from tests.contracts.nouns import LEASE_S, accepted

PAUSE_S = 0.3
SHORT_S = 1.2
DAY_S = 86400.0


async def _held(catalog: Catalog, job: Job, *, alone: bool, lease_s: float = LEASE_S) -> Job:
    claimed = await catalog.jobs.claim(job.id, "w", lease_s, alone)
    assert claimed is not None
    await asyncio.sleep(PAUSE_S)
    return claimed


async def test_the_seconds_that_workers_held_a_job_are_kept(catalog: Catalog) -> None:
    job = await accepted(catalog)
    assert (job.exposed_from, job.exposed_s, job.alone_s) == (0.0, 0.0, 0.0)
    begun = time.monotonic()
    first = await _held(catalog, job, alone=False)
    assert first.exposed_from == pytest.approx(first.updated_at, abs=0.01)
    assert await catalog.jobs.release(job.id, first.attempt)
    await asyncio.sleep(2 * PAUSE_S)  # in nobody's hands
    second = await _held(catalog, job, alone=True)
    assert await catalog.jobs.renew(job.id, second.attempt, LEASE_S)
    await asyncio.sleep(PAUSE_S)
    assert await catalog.jobs.fail(job.id, second.attempt, "no", final=False)
    row = await catalog.jobs.get(job.id)
    most = time.monotonic() - begun - 2 * PAUSE_S
    assert row.exposed_from == first.exposed_from
    assert 3 * PAUSE_S <= row.exposed_s <= most
    assert 2 * PAUSE_S <= row.alone_s <= most - PAUSE_S


@pytest.mark.parametrize("found_by", ["the sweeper", "the next worker"])
async def test_a_crash_is_counted_with_the_seconds_before_it(catalog: Catalog, found_by: str) -> None:
    """Half of the time between two renewals is added, in which the worker must have died."""
    job = await accepted(catalog)
    await catalog.jobs.confirm([job.id])
    begun = time.monotonic()
    claimed = await _held(catalog, job, alone=True)
    assert await catalog.jobs.renew(job.id, claimed.attempt, SHORT_S)
    most = time.monotonic() - begun
    await asyncio.sleep(SHORT_S + 0.1)
    if found_by == "the sweeper":
        assert [one.id for one in await catalog.jobs.to_requeue(unconfirmed_after_s=60.0)] == [job.id]
    else:
        assert await catalog.jobs.claim(job.id, "w2", LEASE_S) is not None
    row = await catalog.jobs.get(job.id)
    assert (row.crashes, row.crashes_alone) == (1, 1)
    assert row.alone_s == pytest.approx(row.exposed_s, abs=0.001)
    assert PAUSE_S + SHORT_S / 6 <= row.alone_s <= most + SHORT_S / 6
    beside = await catalog.jobs.claim(job.id, "w3", LEASE_S) or row
    await catalog.jobs.release(job.id, beside.attempt)


async def test_a_worker_that_lives_takes_its_crash_alone_back(catalog: Catalog) -> None:
    job = await accepted(catalog)
    slow = await catalog.jobs.claim(job.id, "slow", -1.0, True)
    assert slow is not None
    await catalog.jobs.confirm([job.id])
    assert await catalog.jobs.to_requeue(unconfirmed_after_s=60.0)
    assert (await catalog.jobs.get(job.id)).crashes_alone == 1
    assert await catalog.jobs.survived(job.id, slow.crashes, slow.crashes_alone)
    row = await catalog.jobs.get(job.id)
    assert (row.crashes, row.crashes_alone) == (0, 0)


async def test_a_job_that_is_opened_again_has_nothing_held_against_it(catalog: Catalog) -> None:
    job = await accepted(catalog)
    assert await catalog.jobs.claim(job.id, "w", -1.0, True)
    again = await catalog.jobs.claim(job.id, "w", LEASE_S, True)
    assert again is not None
    assert again.crashes_alone == 1
    await asyncio.sleep(0.05)
    assert await catalog.jobs.fail(job.id, again.attempt, "too many crashes", final=True)
    assert await catalog.jobs.reopen(job.id)
    row = await catalog.jobs.get(job.id)
    assert (row.crashes, row.crashes_alone, row.exposed_from, row.exposed_s, row.alone_s) == (0, 0, 0.0, 0.0, 0.0)


async def test_a_worker_that_falls_silent_with_a_job_in_hand_is_one_crash(catalog: Catalog, replica: Catalog) -> None:
    """However many jobs it held; one that said that it holds none is no crash, nor is one that is heard again."""
    begun = (await accepted(catalog)).created_at
    before = await catalog.jobs.fleet(begun)
    for name in ("dead", "idle", "slow"):
        await catalog.jobs.report_worker(name, 0.0, 0.3)
        await replica.jobs.report_worker(name, 2.0, 0.3)
    await catalog.jobs.report_worker("idle", 1.0, 0.0)
    await asyncio.sleep(0.5)
    assert (await catalog.jobs.fleet(begun)).crashes - before.crashes == 2
    await catalog.jobs.report_worker("slow", 4.0, LEASE_S)
    after = await replica.jobs.fleet(begun)
    assert after.crashes - before.crashes == 1
    assert after.busy_s - before.busy_s == pytest.approx(11.0)


async def test_of_a_worker_that_began_earlier_the_last_share_of_its_time_counts(catalog: Catalog) -> None:
    await catalog.jobs.report_worker("old", 0.0, LEASE_S)
    await asyncio.sleep(0.6)
    since = (await accepted(catalog)).created_at
    await asyncio.sleep(0.6)
    await catalog.jobs.report_worker("old", 10.0, LEASE_S)
    assert (await catalog.jobs.fleet(since)).busy_s == pytest.approx(5.0, abs=1.5)
    assert (await catalog.jobs.fleet(since + 60)).busy_s == 0


async def test_what_a_worker_did_more_than_a_day_ago_does_not_count(catalog: Catalog) -> None:
    """It has lived for four days, half of its seconds busy; one that ended two days ago goes as the next one begins."""
    await catalog.jobs.report_worker("old", 1.0, LEASE_S)
    await catalog.jobs.report_worker("ended", 1.0, 0.3)

    def ages(connection: sa.Connection) -> None:
        changes = "begun_at = begun_at - :days, seen_at = seen_at - :since, until = until - :since, busy_s = :busy"
        for holder, since in (("old", 0.0), ("ended", 2 * DAY_S)):
            given = {"days": 4 * DAY_S, "since": since, "busy": 2 * DAY_S, "name": holder}
            connection.execute(sa.text(f"UPDATE workers SET {changes} WHERE holder = :name"), given)

    await catalog._database.write(ages)
    day = await catalog.jobs.fleet(0.0)
    assert day.crashes == 0
    assert day.busy_s == pytest.approx(DAY_S / 2, rel=0.001)
    await catalog.jobs.report_worker("next", 1.0, LEASE_S)
    left = await catalog._database.read(
        lambda connection: connection.execute(sa.text("SELECT holder FROM workers")).all()
    )
    assert {row.holder for row in left} == {"old", "next"}


async def test_an_embedded_start_counts_the_last_process_as_crashed_at_once(catalog: Catalog) -> None:
    await catalog.jobs.report_worker("killed", 1.0, LEASE_S)
    await catalog.jobs.report_worker("ended", 1.0, 0.0)
    await catalog.jobs.recover()
    assert (await catalog.jobs.fleet(0.0)).crashes == 1
