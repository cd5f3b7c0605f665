"""What the catalog promises about jobs, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from services.gateway.caller import Caller
from services.gateway.own_jobs import own_job
from shared.catalog import Catalog
from shared.catalog.jobs.job_rows import row_of
from shared.catalog.jobs.jobs import _list
from shared.catalog.jobs.lanes import Taken
from shared.catalog.tables import jobs
from shared.domain.errors import ConflictError, NotFoundError
from shared.domain.ids import new_id
from shared.domain.types import JobState, Modality, Plan, PlanSource, Source
from tests.contracts.catalog.conftest import plans
from tests.contracts.nouns import EXPIRED_S, LEASE_S, a_job, a_result, accepted, finished, latents_of


async def test_an_accepted_job_is_read_back_whole(catalog: Catalog, replica: Catalog) -> None:
    sent = dataclasses.replace(a_job("‘naïve’ 猫 \x01"), warnings=("embedder: late",))
    job, created = await catalog.jobs.accept(sent, key_lifetime_s=60.0)
    assert created
    assert job == dataclasses.replace(sent, created_at=job.created_at, updated_at=job.updated_at)
    assert job.created_at > 1.7e9
    assert await replica.jobs.get(job.id) == job


async def test_an_unknown_job(catalog: Catalog) -> None:
    for call in (catalog.jobs.get("nope"), catalog.jobs.cancel("nope")):
        with pytest.raises(NotFoundError, match="nope"):
            await call
    assert await catalog.jobs.claim("nope", "w1", LEASE_S) is None
    assert not await catalog.jobs.finish("nope", 0, a_result("nope"))


async def test_a_failed_job_may_begin_anew(catalog: Catalog) -> None:
    job = await accepted(catalog)
    assert not await catalog.jobs.reopen(job.id)
    assert await catalog.jobs.claim(job.id, "w1", LEASE_S)
    assert not await catalog.jobs.reopen(job.id)
    assert await catalog.jobs.fail(job.id, 1, "no", final=True)
    assert await catalog.jobs.reopen(job.id)
    again = await catalog.jobs.get(job.id)
    assert (again.state, again.attempt, again.failures, again.error) == (JobState.QUEUED, 1, 0, "")
    assert [row.id for row in await catalog.jobs.to_requeue(unconfirmed_after_s=-1.0)] == [job.id]
    claimed = await catalog.jobs.claim(job.id, "w1", LEASE_S)
    assert claimed is not None
    assert claimed.attempt == 2
    assert await catalog.jobs.finish(job.id, 2, a_result(job.id))
    assert not await catalog.jobs.reopen(job.id)


async def test_a_job_may_be_born_finished(catalog: Catalog) -> None:
    job = a_job()
    born = dataclasses.replace(job, state=JobState.SUCCEEDED, result=a_result("another", steps=()))
    await catalog.jobs.accept(born, key_lifetime_s=60.0)
    assert (await catalog.jobs.get(job.id)).result == born.result
    assert await catalog.jobs.claim(job.id, "w1", LEASE_S) is None
    assert await catalog.jobs.to_requeue(unconfirmed_after_s=-1.0) == []


async def test_a_key_returns_the_first_job(catalog: Catalog, replica: Catalog) -> None:
    first = a_job()
    key: dict[str, Any] = {"idempotency_key": "k", "caller": "alice", "body_hash": "h", "key_lifetime_s": 60.0}
    await catalog.jobs.accept(first, **key)
    again, created = await replica.jobs.accept(a_job(), **key)
    assert (again.id, created) == (first.id, False)
    with pytest.raises(ConflictError, match="idempotency-key 'k'"):
        await replica.jobs.accept(a_job(), **{**key, "body_hash": "other"})
    _, created = await replica.jobs.accept(a_job(), **{**key, "caller": "bob", "body_hash": "other"})
    assert created
    assert len((await catalog.jobs.list(limit=10))[0]) == 2


async def test_a_key_ends_with_its_lifetime(catalog: Catalog) -> None:
    key: dict[str, Any] = {"idempotency_key": "k", "caller": "alice", "body_hash": "h"}
    first, _ = await catalog.jobs.accept(a_job(), **key, key_lifetime_s=0.05)
    await asyncio.sleep(0.1)
    second, created = await catalog.jobs.accept(a_job(), **key, key_lifetime_s=60.0)
    assert created
    assert second.id != first.id
    third, created = await catalog.jobs.accept(a_job(), **key, key_lifetime_s=60.0)
    assert (third.id, created) == (second.id, False)


async def test_one_key_at_many_replicas_makes_one_job(catalog: Catalog, replica: Catalog) -> None:
    answers = await asyncio.gather(
        *(
            each.jobs.accept(a_job(), idempotency_key="k", caller="a", body_hash="h", key_lifetime_s=60.0)
            for each in (catalog, replica) * 5
        )
    )
    assert sum(created for _, created in answers) == 1
    assert len({job.id for job, _ in answers}) == 1


async def test_claiming_starts_an_attempt_once(catalog: Catalog) -> None:
    job = await accepted(catalog)
    mine = await catalog.jobs.claim(job.id, "w1", LEASE_S)
    assert mine is not None
    assert (mine.state, mine.attempt, mine.worker, mine.crashes) == (JobState.RUNNING, 1, "w1", 0)
    assert mine.lease_until == pytest.approx(mine.updated_at + LEASE_S, abs=0.01)
    assert (mine.request, mine.plan, mine.vector) == (job.request, job.plan, job.vector)
    assert await catalog.jobs.claim(job.id, "w2", LEASE_S) is None


async def test_many_claims_have_one_winner(catalog: Catalog, replica: Catalog) -> None:
    job = await accepted(catalog)
    claims = await asyncio.gather(
        *(each.jobs.claim(job.id, f"w{n}", LEASE_S) for n, each in enumerate((catalog, replica) * 5))
    )
    assert sum(claim is not None for claim in claims) == 1


async def test_many_endings_have_one_winner(catalog: Catalog, replica: Catalog) -> None:
    for _ in range(5):
        job = await accepted(catalog)
        await catalog.jobs.claim(job.id, "w1", LEASE_S)
        finish, fail, release, cancelled = await asyncio.gather(
            catalog.jobs.finish(job.id, 1, a_result(job.id)),
            replica.jobs.fail(job.id, 1, "no", final=True),
            catalog.jobs.release(job.id, 1),
            replica.jobs.cancel(job.id),
        )
        row = await catalog.jobs.get(job.id)
        expected = {JobState.SUCCEEDED: (True, False), JobState.FAILED: (False, True)}
        assert (finish, fail) == expected.get(row.state, (False, False))
        assert finish + fail + release <= 1
        # a release may be cancelled afterwards; nothing else may
        assert release <= (row.state == JobState.CANCELLED)
        assert cancelled.state.final


async def test_an_expired_lease_can_be_claimed_and_fences_the_first_worker(catalog: Catalog) -> None:
    job = await accepted(catalog)
    await catalog.jobs.claim(job.id, "w1", LEASE_S)
    assert await catalog.jobs.checkpoint(job.id, 1, "checkpoints/x", 20)
    assert await catalog.jobs.claim(job.id, "w2", LEASE_S) is None
    assert await catalog.jobs.renew(job.id, 1, 0.01)
    await asyncio.sleep(0.05)
    second = await catalog.jobs.claim(job.id, "w2", LEASE_S)
    assert second is not None
    assert (second.attempt, second.crashes, second.worker) == (2, 1, "w2")
    assert (second.checkpoint_key, second.checkpoint_step) == ("checkpoints/x", 20)
    assert not await catalog.jobs.renew(job.id, 1, LEASE_S)
    assert not await catalog.jobs.checkpoint(job.id, 1, "checkpoints/late", 30)
    assert not await catalog.jobs.finish(job.id, 1, a_result(job.id))
    assert not await catalog.jobs.fail(job.id, 1, "late", final=True)
    assert not await catalog.jobs.release(job.id, 1)
    assert await catalog.jobs.finish(job.id, 2, a_result(job.id, 2))


async def test_a_renewed_lease_is_alive(catalog: Catalog) -> None:
    job = await accepted(catalog)
    await catalog.jobs.claim(job.id, "w1", EXPIRED_S)
    assert await catalog.jobs.renew(job.id, 1, LEASE_S)
    assert await catalog.jobs.claim(job.id, "w2", LEASE_S) is None


async def test_a_finished_job_keeps_result_and_the_plan_as_run(catalog: Catalog) -> None:
    job = await accepted(catalog)
    await catalog.jobs.claim(job.id, "w1", LEASE_S)
    await catalog.jobs.checkpoint(job.id, 1, "checkpoints/x", 20)
    as_run = Plan(PlanSource.LATENT, "tiny", 10, sources=(Source("e"),), similarity=0.9)
    assert await catalog.jobs.finish(job.id, 1, a_result(job.id), as_run)
    row = await catalog.jobs.get(job.id)
    assert (row.state, row.result, row.plan) == (JobState.SUCCEEDED, a_result(job.id), as_run)
    assert (row.checkpoint_key, row.checkpoint_step, row.lease_until) == ("", 0, 0.0)
    assert not await catalog.jobs.finish(job.id, 1, a_result(job.id))
    assert (await catalog.jobs.cancel(job.id)).state == JobState.SUCCEEDED


async def test_failures_count_and_the_last_is_final(catalog: Catalog) -> None:
    job = await accepted(catalog)
    for attempt in (1, 2, 3):
        await catalog.jobs.claim(job.id, "w1", LEASE_S)
        assert await catalog.jobs.fail(job.id, attempt, f"error {attempt}", final=attempt == 3)
        row = await catalog.jobs.get(job.id)
        assert (row.failures, row.crashes, row.error) == (attempt, 0, f"error {attempt}")
        assert row.state == (JobState.FAILED if attempt == 3 else JobState.QUEUED)
    assert await catalog.jobs.claim(job.id, "w1", LEASE_S) is None


async def test_a_released_job_counts_nothing_but_fences(catalog: Catalog) -> None:
    job = await accepted(catalog)
    await catalog.jobs.claim(job.id, "w1", LEASE_S)
    assert await catalog.jobs.release(job.id, 1)
    row = await catalog.jobs.get(job.id)
    assert (row.state, row.failures, row.crashes, row.worker) == (JobState.QUEUED, 0, 0, "")
    again = await catalog.jobs.claim(job.id, "w2", LEASE_S)
    assert again is not None
    assert again.attempt == 2
    assert not await catalog.jobs.finish(job.id, 1, a_result(job.id))


async def test_cancelling(catalog: Catalog) -> None:
    queued, running = await accepted(catalog), await accepted(catalog)
    await catalog.jobs.claim(running.id, "w1", LEASE_S)
    for job in (queued, running):
        assert (await catalog.jobs.cancel(job.id)).state == JobState.CANCELLED
        assert (await catalog.jobs.cancel(job.id)).state == JobState.CANCELLED
    assert await catalog.jobs.claim(queued.id, "w1", LEASE_S) is None
    assert not await catalog.jobs.renew(running.id, 1, LEASE_S)
    assert not await catalog.jobs.finish(running.id, 1, a_result(running.id))


async def test_a_cancelled_job_says_what_it_had_cost(catalog: Catalog, replica: Catalog) -> None:
    job, other = await accepted(catalog), await finished(catalog)
    await catalog.jobs.claim(job.id, "w1", LEASE_S)
    cost = dataclasses.replace(a_result(job.id, steps=()), picture_key="", picture_bytes=0, steps_run=7)
    assert not await catalog.jobs.stopped(job.id, 1, cost)  # it runs
    await catalog.jobs.cancel(job.id)
    assert not await catalog.jobs.stopped(job.id, 2, cost)  # not that attempt's
    assert await catalog.jobs.stopped(job.id, 1, cost)
    assert (await replica.jobs.get(job.id)).result == cost
    assert not await catalog.jobs.stopped(other.id, 1, cost)
    assert (await replica.jobs.get(other.id)).result == other.result
    assert await catalog.jobs.to_cache() == [other.id]
    assert await catalog.jobs.expire(-1.0) == sorted([f"pictures/{other.id}/1.png", *latents_of(other)])


async def test_lists_are_newest_first_in_pages(catalog: Catalog) -> None:
    ids = [f"job{n:02}" for n in range(7)]
    for n, job_id in enumerate(ids):
        await accepted(catalog, id=job_id, tenant="a" if n % 2 else "b")
    await catalog.jobs.cancel("job03")
    seen, after = [], ""
    while True:
        page, after = await catalog.jobs.list(limit=3, after=after)
        seen += [job.id for job in page]
        if not after:
            break
    assert seen == ids[::-1]
    assert [job.id for job in (await catalog.jobs.list(tenant="a", limit=9))[0]] == ["job05", "job03", "job01"]
    assert [job.id for job in (await catalog.jobs.list(state=JobState.CANCELLED, limit=9))[0]] == ["job03"]
    assert await catalog.jobs.list(tenant="a", state=JobState.RUNNING, limit=9) == ([], "")


async def test_clips_are_listed_alone(catalog: Catalog) -> None:
    """No prompt looks like a clip, and a cancelled clip is gone."""
    await accepted(catalog, prompt='"modality":"video"')
    clip, gone = (
        dataclasses.replace(job, request=dataclasses.replace(job.request, modality=Modality.VIDEO, frames=4))
        for job in (a_job(), a_job())
    )
    for job in (clip, gone):
        await catalog.jobs.accept(job)
    await catalog.jobs.cancel(gone.id)
    assert [job.id for job in (await catalog.jobs.list(clips=True))[0]] == [clip.id]
    assert len((await catalog.jobs.list())[0]) == 3


async def test_listing_clips_reads_no_other_jobs(catalog: Catalog) -> None:
    """A tenant's images were all read for each page, by anybody who asked for its clips."""

    def read(connection: sa.Connection) -> list[str]:
        image = {**row_of(a_job()), "created_at": 1.0, "updated_at": 1.0}
        connection.execute(sa.insert(jobs), [{**image, "id": new_id()} for _ in range(3_000)])
        connection.exec_driver_sql("ANALYZE")
        with plans(connection, lambda statement: "ORDER BY" in statement) as lines:
            for subject in (None, "alice"):
                assert _list(connection, image["tenant"], subject, None, 20, "", True) == ([], "")
        return lines

    lines = await catalog._database.write(read)
    assert len([line for line in lines if "ix_jobs_clips" in line]) == 2, lines


async def test_queue_length_and_position(catalog: Catalog) -> None:
    for n, priority in enumerate([0, 5, 0, 9]):
        await accepted(catalog, id=f"job{n}", priority=priority, lane="a")
    await accepted(catalog, id="job9", lane="b")
    assert (await catalog.jobs.queued(), await catalog.jobs.queued("a"), await catalog.jobs.queued("c")) == (5, 4, 0)
    positions = [await catalog.jobs.position(f"job{n}") for n in (0, 1, 2, 3, 9)]
    assert positions == [2, 0, 3, 1, 0]
    await catalog.jobs.claim("job1", "w1", LEASE_S)
    assert [await catalog.jobs.position(f"job{n}") for n in (0, 1, 2, 3)] == [1, 0, 2, 0]
    assert await catalog.jobs.position("nope") == 0
    await accepted(catalog, id="other", lane="a", tenant="small")  # behind one job of the tenant with three
    assert [await catalog.jobs.position(name) for name in ("other", "job0", "job2", "job3")] == [1, 2, 3, 1]
    assert await catalog.jobs.queued_by_tenant() == {"default": 4, "small": 1}


async def test_what_a_tenant_has_taken(catalog: Catalog) -> None:
    job = (await accepted(catalog, id="one", tenant="small")).id
    for other in ("two", "three"):
        await accepted(catalog, id=other, tenant="small")
    await accepted(catalog, id="four")
    await catalog.jobs.claim(job, "w1", LEASE_S)
    await catalog.jobs.cancel("two")
    each = a_job().pixel_steps
    assert each == 64 * 64 * 50
    assert await catalog.jobs.taken("small") == Taken(2, 2 * each)
    assert await catalog.jobs.taken("nobody") == Taken()


async def test_an_id_that_no_database_takes_is_no_job(catalog: Catalog, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such job"):
        await own_job(catalog.jobs, "a\0b", Caller("acme"), tmp_path)
