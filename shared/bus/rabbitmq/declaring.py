"""Declares queues, each once per process, and waits until a new queue is reliable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import ChannelNotFoundEntity

from shared.bus.rabbitmq.link import Link, close
from shared.bus.rabbitmq.queues import Queue, settling_queue

SETTLE_S = 3.5
"""Age in seconds from which a quorum queue keeps the messages that it confirmed.

Brokers (3.10 and 4.0) write the names of new queues three seconds late. After a SIGKILL before that, such a queue is
empty and has no leader (rabbitmq-server #15725). The process that declares a queue first also declares a marker queue
that expires after this time. A process that finds the queue looks for the marker. Thus every process waits for a young
queue, and none waits for an old one.
"""


class Queues:
    """Queues that this process has declared; methods raise aio-pika's errors."""

    def __init__(self, link: Link, wait_s: float) -> None:
        self._link, self._wait_s = link, wait_s
        self._declaring: dict[str, asyncio.Task[None]] = {}
        self._settled_at: dict[str, float] = {}

    async def settled(self, queue: Queue) -> None:
        """Declare the queue and wait until it is old enough to keep its messages."""
        await self.made(queue)
        await asyncio.sleep(self._settled_at.get(queue.name, 0.0) - asyncio.get_running_loop().time())

    async def made(self, queue: Queue) -> None:
        """Declare the queue once for any number of waiting callers; a cancelled caller does not stop it for the
        others."""
        task = self._declaring.get(queue.name)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._declaring[queue.name] = asyncio.create_task(self._declare(queue))
        if not task.done():
            await asyncio.shield(task)

    async def _declare(self, queue: Queue) -> None:
        settling = settling_queue(queue.name, SETTLE_S)
        new = not await self._exists(queue.name)
        if new and SETTLE_S:
            await self._make(settling)
        await self._make(queue)
        if new or await self._exists(settling.name):
            self._settled_at[queue.name] = asyncio.get_running_loop().time() + SETTLE_S

    async def _exists(self, name: str) -> bool:
        try:
            await self._on_a_channel(lambda channel: channel.declare_queue(name, passive=True))
        except ChannelNotFoundEntity:
            return False
        return True

    async def _make(self, queue: Queue) -> None:
        arguments = queue.declared_with
        await self._on_a_channel(lambda channel: channel.declare_queue(queue.name, durable=True, arguments=arguments))

    async def _on_a_channel(self, work: Callable[[AbstractChannel], Awaitable[object]]) -> None:
        """Run on a channel of its own, because a refusal closes the channel."""
        channel = await self._link.channel(self._wait_s)
        try:
            await work(channel)
        finally:
            await close(channel)

    def forget(self, queue: Queue) -> None:
        """Drop the record of a queue that another program deleted; the next caller declares the queue again."""
        self._declaring.pop(queue.name, None)

    async def close(self) -> None:
        for task in self._declaring.values():
            task.cancel()
        await asyncio.gather(*self._declaring.values(), return_exceptions=True)
