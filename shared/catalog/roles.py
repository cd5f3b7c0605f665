"""Roles of PostgreSQL: one for each service, with the privileges that it needs."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from shared.catalog.engines.opening import open_database
from shared.catalog.tables import METADATA
from shared.runtime.clock import SystemClock

TABLES = tuple(METADATA.tables)


async def grant(url: str, role: str, password: str, tables: Mapping[str, str]) -> str:
    """Make the role, or set its password, with exactly these privileges; return its URL.

    url: of an administrator, with the catalog at this version's revision. tables: privileges by table,
    beside SELECT on all: API keys are stored as hashes.
    Raises what the database raises.
    """
    parsed = sa.make_url(url)
    database = open_database(url, SystemClock())
    try:
        await database.write(_granted, parsed.database or "", role, password, tables)
    finally:
        await database.close()
    return parsed.set(username=role, password=password).render_as_string(hide_password=False)


def _granted(connection: sa.Connection, name: str, role: str, password: str, tables: Mapping[str, str]) -> None:
    quoted = connection.dialect.identifier_preparer.quote
    own, secret = quoted(role), str(sa.literal(password).compile(connection, compile_kwargs={"literal_binds": True}))
    known = connection.execute(sa.text("SELECT 1 FROM pg_roles WHERE rolname = :role"), {"role": role}).scalar()
    does = "ALTER" if known else "CREATE"
    for statement in (
        f"{does} ROLE {own} LOGIN PASSWORD {secret}",
        f"GRANT CONNECT ON DATABASE {quoted(name)} TO {own}",
        f"GRANT USAGE ON SCHEMA public TO {own}",
        f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {own}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {own}",
        *(f"GRANT {privileges} ON {quoted(table)} TO {own}" for table, privileges in tables.items()),
    ):
        connection.exec_driver_sql(statement)
