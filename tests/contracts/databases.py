"""A PostgreSQL database of a test's own."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
import sqlalchemy as sa

from shared.catalog import open_catalog
from shared.catalog.tables import METADATA
from shared.domain.ids import new_id
from tests.contracts.servers import url_of


@asynccontextmanager
async def new_database(*, migrated: bool = True) -> AsyncIterator[str]:
    """Its URL; whatever is still connected to it in the end is cut off. Skips (or fails) like `url_of`.

    migrated: whether it is a migrated catalog without rows: a database of an earlier test, emptied, or a copy. Twelve
    migrations take longer than most tests, and a copy takes 0.2 s of the server's processor time.
    """
    server = sa.make_url(url_of("postgresql")).set(drivername="postgresql+asyncpg")
    emptied = _EMPTIED.setdefault(server, []) if migrated else []
    name = emptied.pop() if emptied else await _made(server, migrated)
    yield _url(server, name)
    if migrated and await _emptied(server, name):
        emptied.append(name)
    else:
        await _execute(server, f'DROP DATABASE "{name}" WITH (FORCE)')


_EMPTIED: dict[sa.URL, list[str]] = {}
"""Databases without rows that earlier tests left, by server."""


async def _made(server: sa.URL, migrated: bool) -> str:
    name = f"test_{new_id()}"
    copied = await _copy_of_template(server) if migrated else ""
    await _execute(server, f'CREATE DATABASE "{name}" {copied}')
    return name


async def _emptied(server: sa.URL, name: str) -> bool:
    """Delete every row and return True, if the tables are those of a migrated catalog and nobody stays connected."""
    connection = await asyncpg.connect(server.set(drivername="postgresql", database=name).render_as_string(False))
    try:
        if connection.get_server_version() < (14,) or not await connection.fetchval(CUT_OFF):
            return False
        if await connection.fetchval(SCHEMA) != _SCHEMAS[server]:
            return False
        await connection.execute(";".join(f"DELETE FROM {table}" for table in reversed(METADATA.sorted_tables)))
    finally:
        await connection.close()
    return True


CUT_OFF = """
    SELECT coalesce(bool_and(pg_terminate_backend(pid, 5000)), true) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
SCHEMA = """
    SELECT string_agg(fact, E'\\n' ORDER BY fact) FROM (
        SELECT concat_ws(' ', relname, relkind, relacl, attname, atttypid::regtype, attnotnull) AS fact
        FROM pg_class LEFT JOIN pg_attribute ON attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped
        WHERE relnamespace = 'public'::regnamespace
        UNION ALL SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = 'public'::regnamespace
        UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'
        UNION ALL SELECT tgname FROM pg_trigger WHERE NOT tgisinternal
        UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace
        UNION ALL SELECT setconfig::text FROM pg_db_role_setting JOIN pg_database ON pg_database.oid = setdatabase
        WHERE datname = current_database()
        UNION ALL SELECT version_num FROM alembic_version
    ) AS facts
"""
_SCHEMAS: dict[sa.URL, str] = {}
"""Answer to SCHEMA of a migrated catalog, by server."""


_COPIES: dict[sa.URL, str] = {}
"""Clause of CREATE DATABASE that copies the migrated catalog, by server."""


async def _copy_of_template(server: sa.URL) -> str:
    if server not in _COPIES:
        name = f"template_{new_id()}"
        await _execute(server, f'CREATE DATABASE "{name}"')
        await (await open_catalog(_url(server, name))).close()
        _SCHEMAS[server] = await _execute(server.set(database=name), SCHEMA)
        version = int(await _execute(server, "SHOW server_version_num"))
        # copies files instead of writing every page to the log, as was the only way until version 15
        way = "STRATEGY FILE_COPY" if version >= 150_000 else ""
        _COPIES[server] = f'TEMPLATE "{name}" {way}'
        atexit.register(_drop, server, name)
    return _COPIES[server]


def _drop(server: sa.URL, template: str) -> None:
    with suppress(OSError, asyncpg.PostgresError):  # a server of this session's own may be gone
        for name in (template, *_EMPTIED[server]):
            asyncio.run(_execute(server, f'DROP DATABASE "{name}" WITH (FORCE)'))


async def _execute(server: sa.URL, statement: str) -> Any:
    """Run one statement and return its first value, if it has one; without an engine, which costs more than most."""
    connection = await asyncpg.connect(server.set(drivername="postgresql").render_as_string(hide_password=False))
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


def _url(server: sa.URL, name: str) -> str:
    return server.set(database=name).render_as_string(hide_password=False)
