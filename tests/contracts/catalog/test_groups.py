"""Jobs of one request for several images, on SQLite and on PostgreSQL: all or none, under one key."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import sqlalchemy as sa

from shared.catalog import Catalog
from shared.catalog.tables import idempotency_keys
from shared.domain.errors import AfterimageError, ConflictError, NotFoundError
from tests.contracts.nouns import a_job

KEY: dict[str, Any] = {"idempotency_key": "k", "caller": "alice", "body_hash": "h", "key_lifetime_s": 60.0}


async def rows(catalog: Catalog) -> int:
    return len((await catalog.jobs.list(limit=100))[0])


async def test_a_key_returns_all_jobs_of_the_first_request(catalog: Catalog, replica: Catalog) -> None:
    wanted = [a_job(f"image {number}") for number in range(3)]
    first, created = await catalog.jobs.accept_all(wanted, **KEY)
    assert created
    assert [job.id for job in first] == [job.id for job in wanted]
    assert first == [await replica.jobs.get(job.id) for job in wanted]
    again, created = await replica.jobs.accept_all([a_job() for _ in range(3)], **KEY)
    assert (again, created) == (first, False)
    assert await replica.jobs.first_all("alice", "k", "h", 3) == first
    assert await replica.jobs.first_all("alice", "another", "h", 3) == []
    for refused in (
        replica.jobs.accept_all([a_job() for _ in range(3)], **{**KEY, "body_hash": "other"}),
        replica.jobs.first_all("alice", "k", "other", 3),
        replica.jobs.accept(a_job(), **{**KEY, "body_hash": "one image"}),
    ):
        with pytest.raises(ConflictError, match="idempotency-key 'k'"):
            await refused
    assert await rows(catalog) == 3


async def test_without_a_key_every_request_is_new(catalog: Catalog) -> None:
    for _ in range(2):
        _, created = await catalog.jobs.accept_all([a_job(), a_job()])
        assert created
    assert await rows(catalog) == 4


async def test_all_rows_are_written_or_none(catalog: Catalog, replica: Catalog) -> None:
    """The last row cannot be written: neither the others nor a key stay."""
    known, _ = await catalog.jobs.accept(a_job())
    with pytest.raises(AfterimageError):
        await catalog.jobs.accept_all([a_job(), a_job(), known], **KEY)
    assert await rows(replica) == 1
    assert await replica.jobs.first_all("alice", "k", "h", 3) == []
    _, created = await replica.jobs.accept_all([a_job(), a_job()], **KEY)
    assert created


async def test_of_many_at_once_one_request_gets_the_key(catalog: Catalog, replica: Catalog) -> None:
    answers = await asyncio.gather(
        *(one.jobs.accept_all([a_job(), a_job(), a_job()], **KEY) for one in (catalog, replica) * 4)
    )
    assert sum(created for _, created in answers) == 1
    assert {tuple(job.id for job in jobs) for jobs, _ in answers} == {tuple(job.id for job in answers[0][0])}
    assert await rows(catalog) == 3


async def test_a_key_that_has_expired_is_free_for_another_number_of_images(catalog: Catalog) -> None:
    await catalog.jobs.accept_all([a_job(), a_job(), a_job()], **KEY)

    def expire_the_first(connection: sa.Connection) -> None:
        first = idempotency_keys.c.key == "k"
        connection.execute(sa.update(idempotency_keys).where(first).values(expires_at=1.0))

    await catalog._database.write(expire_the_first)  # the others live on for a moment
    assert await catalog.jobs.first_all("alice", "k", "h", 3) == []
    second, created = await catalog.jobs.accept_all([a_job(), a_job()], **{**KEY, "body_hash": "h2"})
    assert created
    assert await catalog.jobs.first_all("alice", "k", "h2", 2) == second


async def test_an_image_that_expired_alone_is_named(catalog: Catalog) -> None:
    jobs, _ = await catalog.jobs.accept_all([a_job(), a_job(), a_job()], **KEY)
    await catalog.jobs.cancel(jobs[1].id)
    assert await catalog.jobs.expire(-1.0) == []
    with pytest.raises(NotFoundError, match=rf"image 2 of 3 of this request expired \(the first job is {jobs[0].id}\)"):
        await catalog.jobs.first_all("alice", "k", "h", 3)
