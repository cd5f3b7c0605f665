"""Work in the background, done while this replica leads; failures are logged, and the cache goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from shared.domain.errors import AfterimageError
from shared.runtime.telemetry import log
from shared.service.leadership import Leadership


class BackgroundWork:
    """Runs one piece of work, once or every so many seconds."""

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership

    async def every(self, period_s: float, work: Callable[[], Awaitable[Any]], *, first_s: float | None = None) -> None:
        await asyncio.sleep(period_s if first_s is None else first_s)
        while True:
            await self.guarded(work)
            await asyncio.sleep(period_s)

    async def guarded(self, work: Callable[[], Awaitable[Any]]) -> None:
        if not self._leadership.held:  # slept longer than the lease: another replica may be at work
            return
        try:
            await work()
        except AfterimageError as error:  # a port is away, or a disk is full
            log("cache_maintainer").warning("cache maintenance put off", work=_in_words(work), error=str(error))
        except Exception as error:  # the cache must go on; what was not inserted is caught up with later
            log("cache_maintainer").error(
                "cache maintenance failed", work=_in_words(work), error=repr(error), exc_info=error
            )


def _in_words(work: Callable[[], Awaitable[Any]]) -> str:
    """What a log line calls this work: `collect orphans`, `delete`, `flush`."""
    return getattr(work, "__name__", "work").strip("_").replace("_", " ")
