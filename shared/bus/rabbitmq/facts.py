"""Hearing facts: one queue per name or per listener, one fact at a time, and word of a gap."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue

from shared.bus import Handler, trace
from shared.bus.handling import hand_over
from shared.bus.rabbitmq.link import GONE, Link, close_when_cancelled, ended, keep_serving
from shared.bus.rabbitmq.publisher import facts_exchange
from shared.bus.rabbitmq.queues import BACKLOG, facts_queue
from shared.messages import decode

PREFETCH = 100
CLOSE_AFTER_S = 5.0
"""How long a closing subscription waits for the handler that is running."""


class RabbitSubscription:
    """A named queue waits for its subscribers; an unnamed one goes with its only one, and with its connection."""

    def __init__(
        self,
        link: Link,
        kinds: Sequence[str],
        handler: Handler,
        queue: str,
        on_gap: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self._kinds = kinds
        self._handler = handler
        self._name = queue
        self._on_gap = on_gap
        self._handling: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self.closed = False
        self.started = asyncio.Event()
        self._serving = asyncio.create_task(keep_serving(link, self._serve, f"subscription {queue or 'unnamed'}"))

    async def _serve(self, channel: AbstractChannel) -> None:
        await close_when_cancelled(channel)
        facts: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        queue = await self._declare(channel)
        exchange = await facts_exchange(channel)
        for kind in self._kinds:
            await queue.bind(exchange, kind)
        await channel.set_qos(prefetch_count=PREFETCH)
        await queue.consume(facts.put)
        gap = self.started.is_set() and not self._name  # what was in the former queue went with it
        self.started.set()
        if gap and self._on_gap is not None:
            await self._uninterrupted(hand_over(self._on_gap, "gap", self._name))
        while not self.closed:
            fact = await facts.get()
            await self._uninterrupted(self._handle(fact))
            with suppress(*GONE):
                await fact.ack()

    async def _declare(self, channel: AbstractChannel) -> AbstractQueue:
        if self._name:
            shared = facts_queue(self._name)
            return await channel.declare_queue(shared.name, durable=True, arguments=shared.declared_with)
        return await channel.declare_queue(exclusive=True, auto_delete=True, arguments={"x-max-length": BACKLOG})

    async def _handle(self, fact: AbstractIncomingMessage) -> None:
        trace.adopt(fact.headers)
        await hand_over(lambda: self._handler(decode(fact.type or "", fact.body)), fact.type or "", self._name)

    async def _uninterrupted(self, work: Coroutine[Any, Any, None]) -> None:
        """A lost channel ends the listening, not a handler in the middle of its work; the next one waits for that."""

        async def alone() -> None:
            async with self._one_at_a_time:
                await work

        self._handling = asyncio.create_task(alone())
        await asyncio.shield(self._handling)

    async def close(self) -> None:
        self.closed = True
        handling = self._handling
        if handling is asyncio.current_task():
            return  # closed by its own handler: the listening ends when that returns
        if handling is not None and not handling.done():
            done, _ = await asyncio.wait([handling], timeout=CLOSE_AFTER_S)
            if done:
                await asyncio.wait([self._serving], timeout=CLOSE_AFTER_S)  # it acknowledges the fact, and ends
            handling.cancel()
        await ended(self._serving)
