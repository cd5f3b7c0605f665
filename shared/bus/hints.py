"""Facts that nobody is promised: told behind the back of whoever has them, who neither waits for the bus nor fails with
it."""

from __future__ import annotations

import asyncio

from shared.bus import Bus
from shared.domain.messages import Message
from shared.runtime.telemetry import METRICS, log

MOST = 1000
"""Facts on their way at a time; with a broker away for long, later ones are dropped."""
CLOSE_AFTER_S = 5.0


class Hints:
    """What is lost is logged and counted; whoever needs to know reads the catalog all the same."""

    def __init__(self, bus: Bus, service: str) -> None:
        """`service` is whose log says what was lost."""
        self._bus, self._service = bus, service
        self._telling: set[asyncio.Task[None]] = set()

    def tell(self, fact: Message) -> None:
        if len(self._telling) >= MOST:
            self._lost(fact, f"{MOST} others wait for the bus")
            return
        # a task each, so that each carries the trace of the request it tells of
        task = asyncio.create_task(self._publish(fact))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def close(self) -> None:
        """Waits for what is on its way, for a while."""
        if not self._telling:
            return
        _, left = await asyncio.wait(self._telling, timeout=CLOSE_AFTER_S)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _publish(self, fact: Message) -> None:
        try:
            await self._bus.publish(fact)
        except asyncio.CancelledError:
            self._lost(fact, "the process ends")
            raise
        except Exception as error:
            self._lost(fact, repr(error))

    def _lost(self, fact: Message, error: str) -> None:
        kind = type(fact).__name__
        METRICS.hints_lost.labels(kind).inc()
        log(self._service).warning("a fact was not told", kind=kind, error=error)
