"""A catalog whose calls have a time limit, for callers with a waiting client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from shared.catalog.engines.around import DatabaseAround
from shared.catalog.engines.database import Database, R
from shared.domain.errors import UnavailableError

RETRY_AFTER_S = 1.0


class TimeoutDatabase(DatabaseAround):
    """Limits each transaction to `limit_s` seconds, from the request of a connection to the reply of the commit.

    A transaction that timed out may have committed, like one whose connection broke. The caller must check, or retry
    under the same key. Closing a connection to an unreachable server takes up to two seconds more.
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
