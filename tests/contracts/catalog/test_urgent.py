"""The order of a lane's jobs that nobody has claimed, on SQLite and on PostgreSQL, and the claim out of turn."""

from __future__ import annotations

import asyncio
import random

import pytest

from shared.catalog import Catalog
from shared.catalog.jobs.urgent import Order
from shared.domain.errors import UnreadableRowError
from shared.domain.types import URGENT, JobState
from shared.domain.urgency import Waiting, most_urgent
from tests.contracts.catalog.conftest import change, look
from tests.contracts.catalog.test_deadlines import LANE, queued
from tests.contracts.catalog.test_unreadable import spoilt
from tests.contracts.nouns import LEASE_S

ORDERS: tuple[Order, ...] = ("arrival", "urgent")


async def test_the_order_equals_the_pure_one(catalog: Catalog) -> None:
    draw, rows, now = random.Random(1), list[Waiting](), (await queued(catalog, lane="generate.clock")).created_at
    for _ in range(24):
        # far from every boundary, so that the seconds of this test change no place in the order
        limit, priority = draw.choice([None, 1.0, 3000.0, 9000.0, 30000.0]), draw.choice([0, 0, 5])
        alone_s, at = draw.choice([0.0, 20.0, 900.0]), now - draw.choice([20.0, 500.0, 1000.0])
        batched_s = draw.choice([0.0, 5000.0])
        job = await queued(catalog, deadline_s=limit, standalone_s=alone_s, priority=priority, created_at=at)
        await change(catalog, job.id, batched_s=batched_s or None)
        rows.append(Waiting(job.id, at, priority, limit, alone_s, batched_s))
    for aged_first in (False, True):
        expected = most_urgent(rows, now, 24, aged_first=aged_first)
        aged = ["default"] if aged_first else []
        assert await catalog.jobs.next_of_each(LANE, 24, "urgent", aged) == {"default": expected}
        assert await catalog.jobs.next_of_each(LANE, 3, "urgent", aged) == {"default": expected[:3]}


async def test_each_tenant_has_its_own_order(catalog: Catalog) -> None:
    """A flood of one tenant hides no other's jobs."""
    flood = [await queued(catalog) for _ in range(5)]
    small = [await queued(catalog, tenant="small", deadline_s=limit) for limit in (None, 900.0)]
    first = await queued(catalog, priority=URGENT)
    arrival, urgent = [await catalog.jobs.next_of_each(LANE, 2, order) for order in ORDERS]
    assert arrival == {"default": [first.id, flood[0].id], "small": [small[0].id, small[1].id]}
    assert urgent == {"default": [first.id, flood[0].id], "small": [small[1].id, small[0].id]}


async def test_only_new_jobs_of_the_lane_are_offered(catalog: Catalog) -> None:
    new = await queued(catalog, deadline_s=50.0)
    other = await queued(catalog, lane="generate.other")
    tried, ended = await queued(catalog), await queued(catalog)
    assert await catalog.jobs.claim(tried.id, "w", LEASE_S)
    assert await catalog.jobs.release(tried.id, 1)
    await catalog.jobs.cancel(ended.id)
    for order in ORDERS:
        assert await catalog.jobs.next_of_each(LANE, 8, order) == {"default": [new.id]}
        assert await catalog.jobs.next_of_each("generate.other", 8, order) == {"default": [other.id]}
    for job, lane in ((tried, LANE), (ended, LANE), (other, LANE)):
        assert await catalog.jobs.claim_new(job.id, lane, "w", LEASE_S, own_task=False) is None


async def test_one_of_several_workers_wins_a_claim_out_of_turn(catalog: Catalog, replica: Catalog) -> None:
    job = await queued(catalog)
    claims = [
        one.jobs.claim_new(job.id, LANE, f"w{n}", LEASE_S, own_task=False)
        for n, one in enumerate((catalog, replica, catalog, replica))
    ]
    (won,) = [found for found in await asyncio.gather(*claims) if found is not None]
    assert (won.state, won.attempt) == (JobState.RUNNING, 1)
    assert await catalog.jobs.get(job.id) == won


async def test_a_job_claimed_out_of_turn_is_sent_again_once_it_waits(catalog: Catalog) -> None:
    """Its own task may have become another job's."""
    for own in (True, False):
        job = await queued(catalog)
        await catalog.jobs.confirm([job.id])
        assert await catalog.jobs.claim_new(job.id, LANE, "w", LEASE_S, own_task=own)
        assert await catalog.jobs.release(job.id, 1)
        assert (await catalog.jobs.get(job.id)).confirmed is own
        swept = await catalog.jobs.to_requeue(unconfirmed_after_s=-1.0)
        assert [one.id for one in swept] == ([] if own else [job.id])
        await catalog.jobs.cancel(job.id)


async def test_a_late_record_of_the_sending_does_not_undo_a_claim_out_of_turn(catalog: Catalog) -> None:
    """Gateways confirm in batches, up to a second after the task was sent."""
    for own in (True, False):
        job = await queued(catalog)
        assert await catalog.jobs.claim_new(job.id, LANE, "w", LEASE_S, own_task=own)
        await catalog.jobs.confirm([job.id])
        assert await catalog.jobs.release(job.id, 1)
        assert (await catalog.jobs.get(job.id)).confirmed is own


async def test_a_claim_by_the_own_task_confirms_the_row(catalog: Catalog) -> None:
    job = await queued(catalog)
    assert await catalog.jobs.claim(job.id, "w", LEASE_S)
    assert await catalog.jobs.release(job.id, 1)
    assert await catalog.jobs.to_requeue(unconfirmed_after_s=-1.0) == []


@pytest.mark.usefixtures("nothing_is_reported_yet")
async def test_an_unreadable_job_stays_queued(catalog: Catalog) -> None:
    job = await queued(catalog)
    mended = await spoilt(catalog, job.id)
    with pytest.raises(UnreadableRowError):
        await catalog.jobs.claim_new(job.id, LANE, "w", LEASE_S, own_task=True)
    row = await look(catalog, job.id)
    assert (row["state"], row["worker"], row["lease_until"], row["crashes"]) == ("queued", "", 0.0, 0)
    await change(catalog, job.id, **mended)
    # a version that reads the row sends its task, which another job may have got meanwhile
    assert [one.id for one in await catalog.jobs.to_requeue(unconfirmed_after_s=-1.0)] == [job.id]
