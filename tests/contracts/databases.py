"""A PostgreSQL database of a test's own."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from shared.catalog import open_catalog
from shared.domain.ids import new_id
from tests.contracts.servers import url_of


@asynccontextmanager
async def new_database(*, migrated: bool = True) -> AsyncIterator[str]:
    """Its URL; it is dropped with whatever is still connected. Skips (or fails) like `url_of`.

    migrated: whether it is a copy of a migrated catalog without rows. Seven migrations take longer than most tests.
    """
    server, name = sa.make_url(url_of("postgresql")).set(drivername="postgresql+asyncpg"), f"test_{new_id()}"
    template = f' TEMPLATE "{await _template(server)}"' if migrated else ""
    await _execute(server, f'CREATE DATABASE "{name}"{template}')
    yield _url(server, name)
    await _execute(server, f'DROP DATABASE "{name}" WITH (FORCE)')


_TEMPLATES: dict[sa.URL, str] = {}
"""Name of the migrated catalog by server."""


async def _template(server: sa.URL) -> str:
    if server not in _TEMPLATES:
        name = f"template_{new_id()}"
        await _execute(server, f'CREATE DATABASE "{name}"')
        await (await open_catalog(_url(server, name))).close()
        _TEMPLATES[server] = name
        atexit.register(_drop, server, name)
    return _TEMPLATES[server]


def _drop(server: sa.URL, name: str) -> None:
    with suppress(OSError, sa.exc.SQLAlchemyError):  # a server of this session's own may be gone
        asyncio.run(_execute(server, f'DROP DATABASE "{name}" WITH (FORCE)'))


async def _execute(server: sa.URL, statement: str) -> None:
    engine = create_async_engine(server, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    try:
        async with engine.connect() as connection:
            await connection.exec_driver_sql(statement)
    finally:
        await engine.dispose()


def _url(server: sa.URL, name: str) -> str:
    return server.set(database=name).render_as_string(hide_password=False)
