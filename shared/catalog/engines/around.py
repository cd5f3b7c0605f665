"""A wrapper of a database: every call goes through one method that subclasses override."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import sqlalchemy as sa

from shared.catalog.engines.database import Database, R, Ts


class DatabaseAround:
    """Forwards reads and writes to the inner database; a subclass wraps each call in `_asked`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.process_local = database.process_local

    async def _asked(self, ask: Callable[[], Awaitable[R]]) -> R:
        return await ask()

    async def read(self, operation: Callable[[sa.Connection, *Ts], R], *args: *Ts, row: bool = False) -> R:
        return await self._asked(lambda: self._database.read(operation, *args, row=row))

    async def write(
        self, operation: Callable[[sa.Connection, *Ts], R], *args: *Ts, durable: bool = True, row: bool = False
    ) -> R:
        return await self._asked(lambda: self._database.write(operation, *args, durable=durable, row=row))

    async def ping(self) -> None:
        await self._asked(self._database.ping)

    async def close(self) -> None:
        """Do nothing: the owner of the inner database closes it."""
