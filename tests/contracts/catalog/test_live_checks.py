"""Jobs of live checks: clients see nothing of them, and no work waits because of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shared.catalog import Catalog
from shared.catalog.jobs.checks import CHECKS
from shared.domain.errors import NotFoundError
from tests.contracts.nouns import LEASE_S, a_job, a_result


async def test_a_check_is_in_no_listing_and_counts_as_no_work(catalog: Catalog) -> None:
    job = a_job()
    check = replace(a_job(), request=replace(job.request, tenant=CHECKS), lane=job.lane)
    await catalog.jobs.accept(check)
    assert await catalog.jobs.list() == ([], "")
    assert await catalog.jobs.waits([check.lane]) == {}
    assert not await catalog.jobs.busy(running=True)
    await catalog.jobs.accept(job)
    assert [one.id for one in (await catalog.jobs.list())[0]] == [job.id]
    assert await catalog.jobs.busy(running=False)
    await catalog.jobs.claim(job.id, "w", LEASE_S)
    assert [await catalog.jobs.busy(running=running) for running in (False, True)] == [False, True]
    assert await catalog.jobs.left_checks() == [check.id]


async def test_a_check_is_deleted_in_any_state_and_a_clients_job_never(catalog: Catalog) -> None:
    job = a_job()
    check = replace(a_job(), request=replace(job.request, tenant=CHECKS))
    for one in (job, check):
        await catalog.jobs.accept(one)
        await catalog.jobs.claim(one.id, "w", LEASE_S)
    result = a_result(check.id)
    assert await catalog.jobs.finish(check.id, 1, result)
    assert await catalog.jobs.discard(check.id) == result.picture_key
    with pytest.raises(NotFoundError):
        await catalog.jobs.get(check.id)
    assert await catalog.jobs.to_cache() == []  # its note of latents to cache went with it
    assert await catalog.jobs.discard(check.id) == await catalog.jobs.discard(job.id) == ""
    assert (await catalog.jobs.get(job.id)).id == job.id
