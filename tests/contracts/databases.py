"""A PostgreSQL database of a test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from shared.domain.ids import new_id
from tests.contracts.servers import url_of


@asynccontextmanager
async def new_database() -> AsyncIterator[str]:
    """Its URL; it is dropped with whatever is still connected. Skips (or fails) like `url_of`."""
    server, name = sa.make_url(url_of("postgresql")).set(drivername="postgresql+asyncpg"), f"test_{new_id()}"
    engine = create_async_engine(server, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    try:
        async with engine.connect() as connection:
            await connection.exec_driver_sql(f'CREATE DATABASE "{name}"')
        yield server.set(database=name).render_as_string(hide_password=False)
        async with engine.connect() as connection:
            await connection.exec_driver_sql(f'DROP DATABASE "{name}" WITH (FORCE)')
    finally:
        await engine.dispose()
