"""Queues of events inside one process, and the subscriptions that pass the events to handlers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.bus import BACKLOG, GapHandler, Handler, trace
from shared.bus.handling import hand_over, hand_over_fact
from shared.runtime.telemetry import log

if TYPE_CHECKING:  # the bus imports this module
    from shared.bus.inprocess import InProcessBus

CLOSE_AFTER_S = 5.0
"""Seconds for which a closing subscription waits for the running handler."""

_log = log("bus")


@dataclass(slots=True, eq=False)
class Queue:
    """Events for one unnamed subscriber, or for the subscribers that share the queue's name."""

    name: str
    kinds: set[str]
    facts: deque[tuple[str, bytes, Mapping[str, str]]] = field(default_factory=deque)
    """Kind, body and trace of each event."""
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    gap: bool = False

    def put(self, kind: str, body: bytes, headers: Mapping[str, str]) -> None:
        if not self.name and len(self.facts) >= BACKLOG:
            self.facts.popleft()
            self.gap = True
            _log.warning("event_lost", kind=kind, reason=f"a subscriber is {BACKLOG} events behind")
        self.facts.append((kind, body, headers))
        self.ready.set()


class Subscription:
    def __init__(self, bus: InProcessBus, queue: Queue, handler: Handler, on_gap: GapHandler | None) -> None:
        self._bus = bus
        self._queue = queue
        self._handler = handler
        self._on_gap = on_gap
        self._closing = False
        self._task = asyncio.create_task(self._run(), name=f"subscription {queue.name or 'unnamed'}")

    async def _run(self) -> None:
        queue = self._queue
        while not self._closing:
            if not queue.facts:
                queue.ready.clear()
                await queue.ready.wait()
                continue
            if queue.gap:
                queue.gap = False
                if self._on_gap is not None:
                    await hand_over(self._on_gap, "gap", queue.name)
                continue
            fact = queue.facts.popleft()
            try:
                await self._handle(*fact)
            except asyncio.CancelledError:
                queue.facts.appendleft(fact)  # another subscriber of the same queue receives the event
                queue.ready.set()
                raise

    async def _handle(self, kind: str, body: bytes, headers: Mapping[str, str]) -> None:
        with trace.handling(trace.IN_PROCESS, kind, self._queue.name, headers):
            await hand_over_fact(self._handler, kind, body, self._queue.name)

    async def close(self) -> None:
        self._bus.forget(self._queue, self)
        self._closing = True
        self._queue.ready.set()
        if self._task is asyncio.current_task():
            return  # closed by its own handler: the loop ends when the handler returns
        done, _ = await asyncio.wait([self._task], timeout=CLOSE_AFTER_S)
        if not done:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
