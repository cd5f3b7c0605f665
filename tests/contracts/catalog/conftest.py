"""Rows as another version of Afterimage would write them."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from prometheus_client import REGISTRY

from shared.catalog import Catalog
from shared.catalog.tables import METADATA

Row = dict[str, Any]


@pytest.fixture
def nothing_is_reported_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.runtime.unreadable._reported", {})


async def look(catalog: Catalog, id: str, table: str = "jobs") -> Row:
    """The row as it is, with all its columns."""
    of = METADATA.tables[table]

    def read(connection: sa.Connection) -> Row:
        return dict(connection.execute(sa.select(of).where(of.c.id == id)).one()._mapping)

    return await catalog._database.read(read)


async def change(catalog: Catalog, id: str, table: str = "jobs", **columns: Any) -> Row:
    """Writes these columns, and returns what they held before."""
    of, before = METADATA.tables[table], await look(catalog, id, table)

    def write(connection: sa.Connection) -> None:
        connection.execute(sa.update(of).where(of.c.id == id).values(**columns))

    await catalog._database.write(write)
    return {name: before[name] for name in columns}


def counted(table: str = "jobs") -> float:
    return REGISTRY.get_sample_value("afterimage_unreadable_rows_total", {"table": table}) or 0.0
