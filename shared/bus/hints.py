"""Events without delivery guarantee, published in the background: callers neither wait for the bus nor fail with it."""

from __future__ import annotations

import asyncio

from shared.bus import Bus
from shared.domain.messages import Message
from shared.runtime.telemetry import METRICS, log

MOST = 1000
"""Events in progress at a time; during a long outage of the broker, further events are dropped."""
CLOSE_AFTER_S = 5.0


class Hints:
    """Publishes events in the background; lost events are logged and counted, and consumers reread the catalog."""

    def __init__(self, bus: Bus, service: str) -> None:
        """`service` is the name of the logger for lost events."""
        self._bus, self._service = bus, service
        self._telling: set[asyncio.Task[None]] = set()

    def tell(self, fact: Message) -> None:
        if len(self._telling) >= MOST:
            self._lost(fact, f"{MOST} other events wait for the bus")
            return
        # one task per event, so that each carries the trace of its request
        task = asyncio.create_task(self._publish(fact))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def close(self) -> None:
        """Wait up to CLOSE_AFTER_S seconds for the events in progress."""
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
        log(self._service).warning("event not published", kind=kind, error=error)
