"""PostgreSQL through asyncpg: each operation in a transaction of its own, from a pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from shared.catalog.database import Operation, P, R, explain
from shared.errors import ConfigurationError, UnavailableError

TRIES = 3
"""A transaction that the server gave up on (deadlock, serialisation) is run again this often."""


class PostgresqlDatabase:
    """READ COMMITTED, where an UPDATE that waited for a row looks at it again."""

    process_local = False

    def __init__(self, url: sa.URL) -> None:
        self._where = url.render_as_string(hide_password=True)
        try:
            self._engine = create_async_engine(url, pool_size=8, max_overflow=8, pool_pre_ping=False, pool_timeout=10.0)
        except ImportError as error:
            raise ConfigurationError(
                f"catalog_url: {url.drivername} needs a driver that is missing ({error}); install afterimage[cluster]"
            ) from error

    async def _run(self, before: str, operation: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        for left in reversed(range(TRIES)):
            try:
                async with self._engine.begin() as connection:
                    if before:
                        await connection.exec_driver_sql(before)
                    return await connection.run_sync(operation, *args, **kwargs)
            except sa.exc.DBAPIError as error:
                if left and getattr(error.orig, "sqlstate", None) in ("40001", "40P01"):
                    continue
                raise explain(error, self._where) from error
            except OSError as error:
                raise UnavailableError(f"{self._where}: {error}", retry_after_s=1.0) from error
        raise AssertionError("unreachable: the last try returns or raises")

    async def write(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run("", operation, args, kwargs)

    async def write_lazily(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run("SET LOCAL synchronous_commit = off", operation, args, kwargs)

    async def read(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run("", operation, args, kwargs)

    async def close(self) -> None:
        await self._engine.dispose()
