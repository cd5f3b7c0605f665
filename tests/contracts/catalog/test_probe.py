"""A look at a catalog: its version, revision and clock, and nothing is made or migrated."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from shared.catalog import Catalog
from shared.catalog.migrate import HEAD, revision
from shared.catalog.probe import probe_catalog


async def set_revision(catalog: Catalog, number: str) -> None:
    def change(connection: sa.Connection) -> None:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = :number"), {"number": number})

    await catalog._database.write(change)


async def test_the_revision_decides(catalog: Catalog, catalog_url: str) -> None:
    probe = await probe_catalog(catalog_url)
    assert probe is not None
    assert (probe.found, probe.warnings, probe.wrong) == (f"catalog at revision {HEAD}", (), "")
    assert probe.round_trip_s > 0
    if catalog_url.startswith("postgresql"):
        assert probe.server.startswith("PostgreSQL 1")
        assert probe.clock_ahead_s is not None
        assert abs(probe.clock_ahead_s) < 60
    await set_revision(catalog, "0009")
    older = await probe_catalog(catalog_url)
    assert older is not None
    assert "the next start migrates it" in older.warnings[0]
    assert await catalog._database.read(revision) == "0009"
    await set_revision(catalog, "9999")
    newer = await probe_catalog(catalog_url)
    assert newer is not None
    assert "a newer version wrote it" in newer.wrong


@pytest.mark.parametrize("migrated", [False])
@pytest.mark.parametrize("catalog_url", ["postgresql"], indirect=True)
async def test_an_empty_database_stays_empty(catalog_url: str, migrated: bool) -> None:
    for _ in range(2):
        probe = await probe_catalog(catalog_url)
        assert probe is not None
        assert (probe.found, probe.wrong) == ("no catalog yet, the first start makes it", "")
