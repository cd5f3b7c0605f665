"""The catalog's migrations, up and down, on every dialect."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from shared.catalog import open_catalog
from shared.catalog.engines.opening import open_database
from shared.catalog.migrate import HEAD, migrate, revision
from shared.catalog.tables import METADATA
from shared.domain.errors import CatalogVersionError
from shared.runtime.clock import SystemClock
from tests.contracts.nouns import a_job, accepted, an_entry, finished


@pytest.fixture
def migrated() -> bool:
    """Whether a PostgreSQL catalog has its tables before it is opened: here the tests migrate it."""
    return False


def _differences(connection: sa.Connection) -> list[object]:
    return list(compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), METADATA))


def _tables(connection: sa.Connection) -> set[str]:
    return set(sa.inspect(connection).get_table_names()) - {"alembic_version"}


async def test_up_down_up(catalog_url: str) -> None:
    database = open_database(catalog_url, SystemClock())
    for _ in range(2):
        await database.write(migrate)
        assert await database.read(revision) == HEAD
        assert await database.read(_differences) == []  # the migrations make exactly what tables.py says
        await database.write(migrate, "base")
        assert await database.read(_tables) == set()
        assert await database.read(revision) == ""
    await database.close()


async def test_opening_again_keeps_everything(catalog_url: str) -> None:
    catalog = await open_catalog(catalog_url)
    job, _ = await catalog.jobs.accept(a_job(), key_lifetime_s=60.0)
    await catalog.close()
    catalog = await open_catalog(catalog_url)
    assert await catalog.jobs.get(job.id) == job
    await catalog.close()


async def test_replicas_that_open_a_new_catalog_together(catalog_url: str) -> None:
    opened = await asyncio.gather(*(open_catalog(catalog_url) for _ in range(3)))
    job, _ = await opened[0].jobs.accept(a_job(), key_lifetime_s=60.0)
    assert await opened[2].jobs.get(job.id) == job
    for catalog in opened:
        await catalog.close()


async def test_a_newer_catalog_is_refused_and_left_alone(catalog_url: str) -> None:
    await (await open_catalog(catalog_url)).close()
    database = open_database(catalog_url, SystemClock())
    await database.write(
        lambda connection: connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    )
    with pytest.raises(CatalogVersionError, match=f"'9999'.*'{HEAD}'.*catalog_url"):
        await open_catalog(catalog_url)
    assert await database.read(revision) == "9999"
    await database.close()


async def test_a_catalog_of_the_version_before_keeps_its_rows(catalog_url: str) -> None:
    """At revision 0003 nothing says whose the blobs are, nor how long workers held a job: that begins at 0."""
    before = await open_catalog(catalog_url)
    waiting = await accepted(before)
    job = await finished(before)
    entry = an_entry(job_id=job.id)
    await before.entries.add(entry, {"whole": b"\0" * 8})
    kept = await before.entries.get(entry.id)
    job = await before.jobs.get(job.id)
    await before._database.write(migrate, "0003")
    assert await before._database.read(revision) == "0003"
    assert not {"identity", "quarantine", "erasures"} & await before._database.read(_tables)
    await before.close()
    catalog = await open_catalog(catalog_url)
    assert await catalog._database.read(revision) == HEAD
    unheld = replace(job, exposed_from=0.0, exposed_s=0.0, alone_s=0.0)
    assert job != unheld
    assert [await catalog.jobs.get(one.id) for one in (waiting, job)] == [waiting, unheld]
    assert await catalog.entries.get(entry.id) == kept
    assert await catalog._database.read(_differences) == []
    await catalog.close()
