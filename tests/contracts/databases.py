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
from shared.domain.ids import new_id
from tests.contracts.servers import url_of


@asynccontextmanager
async def new_database(*, migrated: bool = True) -> AsyncIterator[str]:
    """Its URL; it is dropped with whatever is still connected. Skips (or fails) like `url_of`.

    migrated: whether it is a copy of a migrated catalog without rows. Seven migrations take longer than most tests.
    """
    server, name = sa.make_url(url_of("postgresql")).set(drivername="postgresql+asyncpg"), f"test_{new_id()}"
    copied = await _copy_of_template(server) if migrated else ""
    await _execute(server, f'CREATE DATABASE "{name}" {copied}')
    yield _url(server, name)
    await _execute(server, f'DROP DATABASE "{name}" WITH (FORCE)')


_COPIES: dict[sa.URL, str] = {}
"""Clause of CREATE DATABASE that copies the migrated catalog, by server."""


async def _copy_of_template(server: sa.URL) -> str:
    if server not in _COPIES:
        name = f"template_{new_id()}"
        await _execute(server, f'CREATE DATABASE "{name}"')
        await (await open_catalog(_url(server, name))).close()
        version = int(await _execute(server, "SHOW server_version_num"))
        # copies files instead of writing every page to the log, as was the only way until version 15
        way = "STRATEGY FILE_COPY" if version >= 150_000 else ""
        _COPIES[server] = f'TEMPLATE "{name}" {way}'
        atexit.register(_drop, server, name)
    return _COPIES[server]


def _drop(server: sa.URL, name: str) -> None:
    with suppress(OSError, asyncpg.PostgresError):  # a server of this session's own may be gone
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
