"""How a subscriber is told a fact: in order, again when it fails, and not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from shared.telemetry import log

RETRY_AFTER_S = (0.05, 0.2, 0.8)
"""How long a fact waits before a failed handler sees it again, by try; then it is dropped."""

_log = log("bus")


async def hand_over(tell: Callable[[], Awaitable[None]], kind: str, queue: str) -> None:
    """Calls `tell` until it does not raise, a few times; `kind` and `queue` are for the log."""
    for wait_s in (*RETRY_AFTER_S, None):
        try:
            await tell()
            return
        except Exception as error:
            if wait_s is None:
                _log.error("fact_dropped", kind=kind, queue=queue, error=repr(error), exc_info=error)
                return
            _log.warning("fact_retried", kind=kind, queue=queue, error=repr(error), again_in_s=wait_s)
            await asyncio.sleep(wait_s)
