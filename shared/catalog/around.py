"""A database around another: the same ways to run an operation, each through one place where something is added."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from shared.catalog.database import Database, Operation, P, R

Run = Callable[..., Awaitable[Any]]
"""One of the inner database's ways to run an operation."""


class DatabaseAround:
    """Reads and writes as the database inside does; what is added is said in `_written` and `_asked`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.process_local = database.process_local

    async def _written(self, run: Run, operation: Callable[..., R], args: Any, kwargs: Any) -> R:
        return await self._asked(run, operation, args, kwargs)

    async def _asked(self, run: Run, operation: Callable[..., R], args: Any, kwargs: Any) -> R:
        answer: R = await run(operation, *args, **kwargs)
        return answer

    async def write(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._written(self._database.write, operation, args, kwargs)

    async def write_statement(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._written(self._database.write_statement, operation, args, kwargs)

    async def write_lazily(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._written(self._database.write_lazily, operation, args, kwargs)

    async def write_row(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._written(self._database.write_row, operation, args, kwargs)

    async def read(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._asked(self._database.read, operation, args, kwargs)

    async def read_row(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._asked(self._database.read_row, operation, args, kwargs)

    async def ping(self) -> None:
        await self._database.ping()

    async def close(self) -> None:
        """The inner database is its owner's to close."""
