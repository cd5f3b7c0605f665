"""A catalog that another version of Afterimage wrote to: what this one can read is served, the rest waits for the
version that can read it, and is drawn by that."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from shared.catalog import Catalog, open_catalog
from shared.catalog.tables import METADATA
from shared.client import AsyncClient
from shared.domain.errors import AfterimageError, NotFoundError
from shared.domain.ids import new_id
from shared.domain.types import Job, JobState, PlanSource
from shared.runtime.settings import Settings
from tests.flows.conftest import Make
from tests.flows.house import SLOW, House, house

Rows = dict[tuple[str, str], dict[str, Any]]
COLUMNS = ("id", "state", "plan", "request", "result", "attempt", "failures", "crashes", "lease_until", "updated_at")


async def write(catalog: Catalog, table: str, id: str, **columns: Any) -> None:
    of = METADATA.tables[table]

    def run(connection: sa.Connection) -> None:
        assert connection.execute(sa.update(of).where(of.c.id == id).values(**columns)).rowcount == 1

    await catalog._database.write(run)


async def rows_of(catalog: Catalog, ids: list[str]) -> list[Any]:
    of = METADATA.tables["jobs"]

    def run(connection: sa.Connection) -> list[Any]:
        query = sa.select(*(of.c[name] for name in COLUMNS)).where(of.c.id.in_(ids)).order_by(of.c.id)
        return [tuple(row) for row in connection.execute(query)]

    return await catalog._database.read(run)


async def two_jobs_of_a_killed_process(settings: Settings, like: Job) -> tuple[str, str]:
    """One queued, one running under a lease that is still alive."""
    catalog = await open_catalog(settings.catalog_url)
    queued, running = new_id(), new_id()
    for job_id in (queued, running):
        await catalog.jobs.accept(replace(like, id=job_id, state=JobState.QUEUED, result=None, exact_key=""))
    assert await catalog.jobs.claim(running, "killed", 600.0)
    await catalog.close()
    return queued, running


async def test_a_start_over_rows_of_another_version(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    settings = make(large=SLOW, sweep_s=0.2, resend_s=0.2, blob_grace_s=0.1, collect_s=0.3, results_keep_s=3600.0)
    async with house(settings) as home:
        first, second = [await home.generate(f"a red cube {n}", seed=n) for n in (1, 2)]
        done = await home.backends.catalog.jobs.get(first.job.id)
    queued, running = await two_jobs_of_a_killed_process(settings, done)
    catalog = await open_catalog(settings.catalog_url)
    strange = sorted([queued, running, done.id])
    said = {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in await rows_of(catalog, strange)}
    for job_id in (queued, running):
        await write(
            catalog, "jobs", job_id, plan=json.dumps(json.loads(said[job_id]["plan"]) | {"source": "superposed"})
        )
    result = json.loads(said[done.id]["result"])
    await write(catalog, "jobs", done.id, result=json.dumps(result | {"timings": "long"}))
    await write(catalog, "entries", done.id, scope="friends")
    before = await rows_of(catalog, strange)

    capsys.readouterr()
    async with house(settings) as home:
        await the_rest_is_served(home, second.job.id, strange)
        await its_own_tenant_is_told(home, queued)
        await asyncio.sleep(1.0)  # several sweeps and collections
        assert await rows_of(catalog, strange) == before
        assert await home.backends.blobs.get(result["picture_key"], result["picture_sha256"])
        states = {one["key"] for one in result["captured"]}
        assert states
        assert await catalog.entries.referenced(sorted(states)) == states
        again = await home.client.generate("a red cube 1", steps=10, seed=1)  # its answer cannot be read: a miss
        assert again.plan.source is not PlanSource.EXACT
    text = capsys.readouterr()
    for job_id in (queued, running):
        assert (text.out + text.err).count(f"row={job_id}") + (text.out + text.err).count(f'"row": "{job_id}"') == 1

    for job_id in (queued, running):  # the version that can read them runs
        await write(catalog, "jobs", job_id, plan=said[job_id]["plan"])
    await write(catalog, "jobs", done.id, result=said[done.id]["result"])
    await write(catalog, "entries", done.id, scope="tenant")
    async with house(settings) as home:
        for job_id, crashes in ((queued, 0), (running, 1)):
            async with asyncio.timeout(30):
                while not (job := await catalog.jobs.get(job_id)).state.final:
                    await asyncio.sleep(0.02)
            assert (job.state, job.failures, job.crashes) == (JobState.SUCCEEDED, 0, crashes)
        assert (await home.client.get_picture(done.id)).png
        assert {*strange, second.job.id} <= {view.job.id for view in (await home.client.list_jobs())[0]}
        assert (await catalog.entries.get(done.id)).scope == "tenant"
    await catalog.close()


async def the_rest_is_served(home: House, old: str, strange: list[str]) -> None:
    new = await home.generate("a blue sphere", seed=3)
    listed, token = await home.client.list_jobs(page_size=1)
    while token:
        page, token = await home.client.list_jobs(page_size=1, page_token=token)
        listed += page
    assert [view.job.id for view in listed] == [new.job.id, old]
    assert not {view.job.id for view in listed} & {*strange}


async def its_own_tenant_is_told(home: House, job_id: str) -> None:
    with pytest.raises(AfterimageError, match=rf"{job_id}.*plan\.source: .*superposed.*a newer version can read it"):
        await home.client.get_job(job_id)
    with pytest.raises(AfterimageError, match=r"plan\.source"):
        await home.client.cancel(job_id)
    async with AsyncClient(home.process.address, tenant="another", retry_s=0.0) as other:
        with pytest.raises(NotFoundError, match="no such job"):
            await other.get_job(job_id)
