"""Subscriptions to events: one queue per name or per subscriber, one event at a time, with gap detection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue

from shared.bus import BACKLOG, GapHandler, Handler, trace
from shared.bus.handling import hand_over, hand_over_fact
from shared.bus.rabbitmq.channels import close_when_cancelled, keep_serving
from shared.bus.rabbitmq.link import GONE, Link, ended
from shared.bus.rabbitmq.publisher import facts_exchange
from shared.bus.rabbitmq.queues import facts_queue
from shared.runtime.telemetry import log

PREFETCH = 100
CLOSE_AFTER_S = 5.0
"""Seconds for which a closing subscription waits for the running handler."""

_log = log("bus")


class RabbitSubscription:
    """Subscription to events. A named queue outlives it; an unnamed queue ends with it or with the connection."""

    def __init__(
        self,
        link: Link,
        kinds: Sequence[str],
        handler: Handler,
        queue: str,
        on_gap: GapHandler | None,
    ) -> None:
        self._kinds = kinds
        self._handler = handler
        self._name = queue
        self._on_gap = on_gap
        self._handling: set[asyncio.Task[None]] = set()
        """Running handlers. One works; after a lost channel, the next may wait for it."""
        self._one_at_a_time = asyncio.Lock()
        self.closed = False
        self.started = asyncio.Event()
        self._serving = asyncio.create_task(keep_serving(link, self._serve, f"subscription {queue or 'unnamed'}"))

    async def _serve(self, channel: AbstractChannel) -> None:
        await close_when_cancelled(channel)
        facts: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        dropped = await self._declare_dropped(channel)
        queue = await self._declare(channel, dropped)
        exchange = await facts_exchange(channel)
        for kind in self._kinds:
            await queue.bind(exchange, kind)
        overflow = "" if dropped is None else await _consume(channel, dropped, facts, 1)
        await _consume(channel, queue, facts, PREFETCH)
        gap = self.started.is_set() and not self._name  # the events in the former queue were lost with it
        self.started.set()
        if gap and self._on_gap is not None:
            await self._uninterrupted(partial(hand_over, self._on_gap, "gap", self._name))
        while (fact := await self._next(facts)) is not None:
            if dropped is not None and fact.consumer_tag == overflow:
                await self._uninterrupted(partial(self._start_over, queue, dropped))
            else:
                await self._uninterrupted(partial(self._handle, fact))
            with suppress(*GONE):
                await fact.ack()

    async def _next(self, facts: asyncio.Queue[AbstractIncomingMessage]) -> AbstractIncomingMessage | None:
        """Return the next event; None once the subscription is closed, when unprocessed events return to the queue."""
        fact = None if self.closed else await facts.get()
        return None if self.closed else fact

    async def _declare(self, channel: AbstractChannel, dropped: AbstractQueue | None) -> AbstractQueue:
        if self._name:
            shared = facts_queue(self._name)
            return await channel.declare_queue(shared.name, durable=True, arguments=shared.declared_with)
        to = {} if dropped is None else {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dropped.name}
        return await channel.declare_queue(exclusive=True, auto_delete=True, arguments={"x-max-length": BACKLOG, **to})

    async def _declare_dropped(self, channel: AbstractChannel) -> AbstractQueue | None:
        """Declare the queue for the last event that an unnamed queue had no room for; an event there signals a gap."""
        if self._name or self._on_gap is None:
            return None
        return await channel.declare_queue(exclusive=True, auto_delete=True, arguments={"x-max-length": 1})

    async def _start_over(self, queue: AbstractQueue, dropped: AbstractQueue) -> None:
        """Discard the waiting events and call `on_gap`.

        A subscriber that rereads everything needs none of these events. Processing all of them would leave it too far
        behind again.
        """
        assert self._on_gap is not None
        _log.warning("event_lost", reason=f"a subscriber is {BACKLOG} events behind", kinds=self._kinds)
        await queue.purge()
        await dropped.purge()
        await hand_over(self._on_gap, "gap", self._name)

    async def _handle(self, fact: AbstractIncomingMessage) -> None:
        kind = fact.type or ""
        with trace.handling(trace.RABBITMQ, kind, self._name, fact.headers):
            await hand_over_fact(self._handler, kind, fact.body, self._name)

    async def _uninterrupted(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` to its end even if the channel is lost; the next event's handler waits for that."""

        async def alone() -> None:
            async with self._one_at_a_time:
                await work()

        task = asyncio.create_task(alone())
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)
        await asyncio.shield(task)

    async def close(self) -> None:
        """Close the subscription. A handler that takes too long is cancelled, and its event returns to the queue."""
        self.closed = True
        if asyncio.current_task() in self._handling:
            return  # closed by its own handler: serving ends when the handler returns
        if self._handling:
            _, running = await asyncio.wait(self._handling, timeout=CLOSE_AFTER_S)
            if not running:
                await asyncio.wait([self._serving], timeout=CLOSE_AFTER_S)  # serving acknowledges the event, and ends
        await ended(self._serving)
        await ended(*self._handling)


async def _consume(
    channel: AbstractChannel, queue: AbstractQueue, into: asyncio.Queue[AbstractIncomingMessage], prefetch: int
) -> str:
    await channel.set_qos(prefetch_count=prefetch)  # applies to consumers created later
    return await queue.consume(into.put)
