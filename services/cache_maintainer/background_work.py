"""Background work of the leading replica: failures are logged, and the service continues."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from shared.domain.errors import AfterimageError
from shared.runtime.telemetry import log
from shared.service.leadership import Leadership


class BackgroundWork:
    """Runs a coroutine function once, or every `period_s` seconds, while this replica holds the lease."""

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership

    async def every(self, period_s: float, work: Callable[[], Awaitable[Any]], *, first_s: float | None = None) -> None:
        await asyncio.sleep(period_s if first_s is None else first_s)
        while True:
            await self.guarded(work)
            await asyncio.sleep(period_s)

    async def guarded(self, work: Callable[[], Awaitable[Any]]) -> bool:
        """Return whether the work is done."""
        # this process may have slept longer than its lease: another replica may be the leader
        if not self._leadership.held:
            return False
        try:
            await work()
            return True
        except AfterimageError as error:  # a backend is unreachable, or a disk is full
            log("cache_maintainer").warning("cache maintenance postponed", work=_in_words(work), error=str(error))
        except Exception as error:  # the service must continue; `catch_up` inserts the missing jobs later
            log("cache_maintainer").error(
                "cache maintenance failed", work=_in_words(work), error=repr(error), exc_info=error
            )
        return False


def _in_words(work: Callable[[], Awaitable[Any]]) -> str:
    """Return the name of this work for log lines: `collect orphans`, `delete evicted`, `flush`."""
    return getattr(work, "__name__", "work").strip("_").replace("_", " ")
