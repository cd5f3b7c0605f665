"""Rows as another version of Afterimage would write them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@contextmanager
def plans(connection: sa.Connection, of: Callable[[str], bool]) -> Iterator[list[str]]:
    """The database's own plans of the statements that run meanwhile, of those that `of` holds for; line by line, and
    filled at the end."""
    ran, lines = list[tuple[str, Any]](), list[str]()

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        ran.append((statement, parameters))

    sa.event.listen(connection, "before_cursor_execute", note)
    yield lines
    sa.event.remove(connection, "before_cursor_execute", note)
    explain = "EXPLAIN " if connection.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN "
    for statement, parameters in ran:
        if of(statement):
            lines += [str(row[-1]) for row in connection.exec_driver_sql(explain + statement, parameters)]
