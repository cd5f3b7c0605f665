"""A catalog that answers within a stated time or not at all, for those somebody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shared.catalog.database import Database, Operation, P, R
from shared.errors import UnavailableError

RETRY_AFTER_S = 1.0


class BoundedDatabase:
    """Gives each transaction so many seconds, from asking for a connection to the answer of its commit.

    A transaction that is given up may have been committed, as one whose connection broke may: whoever asked must look,
    or ask again under the same key. Hanging up on a server that cannot be reached takes up to two seconds more.
    """

    def __init__(self, database: Database, limit_s: float) -> None:
        self._database, self._limit_s = database, limit_s
        self.process_local = database.process_local

    @asynccontextmanager
    async def _bounded(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._limit_s):
                yield
        except TimeoutError as error:
            said = f"the catalog did not answer within {self._limit_s:g} s (catalog_timeout_s)"
            raise UnavailableError(said, retry_after_s=RETRY_AFTER_S) from error

    async def write(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        async with self._bounded():
            return await self._database.write(operation, *args, **kwargs)

    async def write_statement(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        async with self._bounded():
            return await self._database.write_statement(operation, *args, **kwargs)

    async def write_lazily(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        async with self._bounded():
            return await self._database.write_lazily(operation, *args, **kwargs)

    async def write_row(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        async with self._bounded():
            return await self._database.write_row(operation, *args, **kwargs)

    async def read(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        async with self._bounded():
            return await self._database.read(operation, *args, **kwargs)

    async def read_row(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        async with self._bounded():
            return await self._database.read_row(operation, *args, **kwargs)

    async def ping(self) -> None:
        async with self._bounded():
            await self._database.ping()

    async def close(self) -> None:
        """The database is its owner's to close."""
