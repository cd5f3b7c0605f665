"""Receives tasks: pushed ahead by the broker from one lane, or pulled in order from several lanes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue

from shared.bus.handling import UNKNOWN_AGAIN_S, of_another_version
from shared.bus.rabbitmq.channels import CALL_S, close_when_cancelled, keep_serving, one_of
from shared.bus.rabbitmq.delivery import RabbitDelivery, moved
from shared.bus.rabbitmq.link import CLOSE_S, GONE, Link, ended
from shared.bus.rabbitmq.queues import lane_queue
from shared.bus.rabbitmq.returns import Returns
from shared.domain.errors import UnavailableError
from shared.runtime import tracing


class RabbitReceiver:
    """Holds at most `prefetch` tasks of its lanes at a time."""

    def __init__(self, link: Link, lanes: Sequence[str], prefetch: int, returns: Returns, *, ahead: bool) -> None:
        self.returns = returns
        self._lanes = list(lanes)
        self._prefetch, self._pushed = prefetch, ahead and len(lanes) == 1
        self._ready: list[tuple[int, AbstractIncomingMessage]] = []
        """(index of the lane, task): delivered tasks that no `get` has taken yet."""
        self._held: dict[int, AbstractIncomingMessage] = {}
        self._waiting = 0
        self._news, self._turn, self._came = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._stopping, self._quiet = asyncio.Event(), asyncio.Event()
        self._quiet.set()  # no delivery is in progress, and no delivered task waits here
        self._moving: set[asyncio.Task[bool]] = set()
        self.closed = False
        self.started = asyncio.Event()
        self._serving = asyncio.create_task(keep_serving(link, self._serve, f"receiver of {', '.join(lanes)}"))

    async def get(self) -> RabbitDelivery:
        # nothing is taken before the last await, so a cancelled get() loses no task
        while not self._stopping.is_set():
            if not self._ready:
                await self._wait_for_news()
                continue
            place, task = self._ready.pop(0)
            try:
                delivery = RabbitDelivery(self, self._lanes[place], task)
            except (KeyError, ValueError) as error:  # another version's command, or not a command
                self._set_aside(self._lanes[place], task, error)
                continue
            self._held[id(task)] = task
            tracing.adopt(task.headers)
            return delivery
        raise UnavailableError("the receiver is closed")

    async def _wait_for_news(self) -> None:
        self._waiting += 1
        self._turn.set()
        self._news.clear()
        try:
            await self._news.wait()
        finally:
            self._waiting -= 1

    def _set_aside(self, lane: str, task: AbstractIncomingMessage, error: Exception) -> None:
        """Return a command that cannot be decoded, or dead-letter it if no version could decode it."""
        if of_another_version(task.type or "", task.body, error):
            going = self.returns.give_back(lane, task, UNKNOWN_AGAIN_S, counts=False)
        else:
            going = self.returns.bury(lane, task, f"not understood: {error!r}")
        moving = asyncio.create_task(moved(task, going))
        self._moving.add(moving)
        moving.add_done_callback(self._moving.discard)

    def settle(self, task: AbstractIncomingMessage) -> bool:
        """Return False if this receiver no longer holds the task: settled before, or returned with its channel."""
        if self._held.pop(id(task), None) is None:
            return False
        self._turn.set()
        return True

    async def stop(self) -> None:
        for event in (self._stopping, self._news, self._turn, self._came):
            event.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._quiet.wait()

    async def close(self) -> None:
        self.closed = True
        await self.stop()  # sequential: an interrupted call to the broker may block all other calls of its connection
        await asyncio.gather(ended(self._serving), *self._moving, return_exceptions=True)

    # ---- what runs on a channel ----

    async def _serve(self, channel: AbstractChannel) -> None:
        if self._stopping.is_set():
            return  # the held tasks were returned with the previous channel
        self._quiet.clear()
        try:
            await close_when_cancelled(channel)
            await channel.set_qos(prefetch_count=self._prefetch if self._pushed else 1)
            queues = [
                await channel.declare_queue(lane, durable=True, arguments=lane_queue(lane).declared_with)
                for lane in self._lanes
            ]
            await (self._push(queues[0]) if self._pushed else self._pull(queues))
            await self._keep_at_most(0)
            self._quiet.set()
            await asyncio.get_running_loop().create_future()  # held tasks are settled on this channel
        finally:  # the channel is lost or closed, so the broker has its tasks again
            self._ready.clear()
            self._held.clear()
            self._quiet.set()

    async def _consume(self, place: int, queue: AbstractQueue) -> str:
        async def arrived(task: AbstractIncomingMessage) -> None:
            if self._quiet.is_set():  # the task was in transit when the last consumer was cancelled
                with suppress(*GONE):
                    await task.nack(requeue=True)
            else:
                self._offer(place, task)

        return await queue.consume(arrived)

    def _offer(self, place: int, task: AbstractIncomingMessage) -> None:
        self._ready.append((place, task))
        self._news.set()
        self._came.set()

    async def _keep_at_most(self, count: int) -> None:
        """Return waiting tasks beyond `count` to the broker, last arrival first."""
        while len(self._ready) > count:
            await self._ready.pop()[1].nack(requeue=True)

    async def _push(self, queue: AbstractQueue) -> None:
        """Let the broker deliver from one lane up to the prefetch limit."""
        tag = await self._consume(0, queue)
        self.started.set()
        await self._stopping.wait()
        await _cancel(queue, tag)

    async def _pull(self, queues: Sequence[AbstractQueue]) -> None:
        """Pull one task at a time, lanes in order.

        AMQP prefetch counts per queue and ignores tasks held from other queues, so it cannot limit several lanes
        together.
        """
        self.started.set()
        while not self._stopping.is_set():
            if not self._waiting or self._ready or len(self._held) >= self._prefetch:
                self._turn.clear()
                await self._turn.wait()
                continue
            for place, queue in enumerate(queues):
                task = await one_of(queue)
                if task is not None:
                    self._offer(place, task)
                    break
            else:
                await self._first_of(queues)

    async def _first_of(self, queues: Sequence[AbstractQueue]) -> None:
        """Consume from all lanes until one delivers a task; return the surplus tasks of the others."""
        self._came.clear()
        tags = [await self._consume(place, queue) for place, queue in enumerate(queues)]
        if not self._stopping.is_set():
            await self._came.wait()
        for queue, tag in zip(queues, tags, strict=True):
            await _cancel(queue, tag)
        self._ready.sort(key=lambda pair: pair[0])
        await self._keep_at_most(max(self._prefetch - len(self._held), 0))


async def _cancel(queue: AbstractQueue, tag: str) -> None:
    async with asyncio.timeout(CALL_S):
        await queue.cancel(tag)
