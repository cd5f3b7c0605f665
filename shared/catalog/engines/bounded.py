"""A catalog that answers within a stated time or not at all, for those somebody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from shared.catalog.engines.around import DatabaseAround
from shared.catalog.engines.database import Database, R
from shared.domain.errors import UnavailableError

RETRY_AFTER_S = 1.0


class TimeoutDatabase(DatabaseAround):
    """Gives each transaction so many seconds, from asking for a connection to the answer of its commit.

    A transaction that is given up may have been committed, as one whose connection broke may: whoever asked must look,
    or ask again under the same key. Hanging up on a server that cannot be reached takes up to two seconds more.
    """

    def __init__(self, database: Database, limit_s: float) -> None:
        super().__init__(database)
        self._limit_s = limit_s

    async def _asked(self, ask: Callable[[], Awaitable[R]]) -> R:
        try:
            async with asyncio.timeout(self._limit_s):
                return await ask()
        except TimeoutError as error:
            said = f"the catalog did not answer within {self._limit_s:g} s"
            raise UnavailableError(said, retry_after_s=RETRY_AFTER_S) from error
