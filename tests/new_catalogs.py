"""New SQLite catalogs with the tables of the first: twelve migrations take 0.15 s of processor time, a copy 0.01 s."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from shared.catalog.migrate import migrate, revision

_STATEMENTS: list[str] = []
"""SQL that makes an empty database a migrated catalog without jobs; empty before the first catalog."""


def migrate_once(connection: sa.Connection, target: str = "head") -> None:
    """Migrate like `migrate`; a new SQLite catalog gets the tables and rows that the first one of this process got."""
    if connection.dialect.name != "sqlite" or target != "head" or revision(connection):
        migrate(connection, target)
        return
    for statement in _STATEMENTS:
        connection.exec_driver_sql(statement)
    if not _STATEMENTS:
        migrate(connection, target)
        raw: Any = connection.connection.driver_connection
        _STATEMENTS.extend(raw.iterdump())
        _STATEMENTS[:] = [one for one in _STATEMENTS if one not in ("BEGIN TRANSACTION;", "COMMIT;")]
