"""The message queue on RabbitMQ (3.10 and later): durable lanes with confirms, and events for subscribers."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import aclosing, suppress
from typing import TypeVar

from shared.bus import DeadLetter, GapHandler, Handler, trace
from shared.bus.rabbitmq.dead_letters import browse, letter_of, replay
from shared.bus.rabbitmq.facts import RabbitSubscription
from shared.bus.rabbitmq.link import Link
from shared.bus.rabbitmq.publisher import Publisher, parcel
from shared.bus.rabbitmq.queues import DEAD_LETTERS, facts_queue, lane_queue
from shared.bus.rabbitmq.receiving import RabbitReceiver
from shared.bus.rabbitmq.returns import Returns
from shared.domain.errors import UnavailableError
from shared.domain.ids import new_id
from shared.domain.messages import Message, Progress, encode

OPEN_S = 5.0
"""Seconds for which opening waits for the broker; the callers at start-up retry."""
WAIT_S = 5.0
"""Seconds for which a call waits for a broker that became unreachable."""
MAX_PRIORITY = 9

Listener = TypeVar("Listener", RabbitReceiver, RabbitSubscription)


class RabbitBus:
    """Two connections: one publishes and may be blocked by a full broker, the other receives and acknowledges."""

    process_local = False

    def __init__(self, url: str, *, delivery_limit: int = 50, wait_s: float = WAIT_S) -> None:
        """A command returned more than `delivery_limit` times (if the return counts) is dead-lettered."""
        self._wait_s = wait_s
        self._links = (Link(url, "publishes"), Link(url, "receives"))
        self._publisher = Publisher(self._links[0], wait_s)
        self._returns = Returns(self._publisher, delivery_limit)
        self._open: list[RabbitReceiver | RabbitSubscription] = []
        self._closed = False

    async def open(self, within_s: float = OPEN_S) -> RabbitBus:
        """Connect; raise UnavailableError without a timely answer, ConfigurationError if the broker rejects."""
        try:
            for link in self._links:
                await link.ready(within_s)
            await self._publisher.declare(DEAD_LETTERS)
            await self._publisher.prepare()
        except BaseException:
            await self.close()
            raise
        return self

    @property
    def up(self) -> bool:
        return all(link.up for link in self._links)

    @property
    def full(self) -> str:
        return self._links[0].full

    @property
    def priorities(self) -> bool:
        """True if this broker serves urgent tasks first: quorum queues do so since RabbitMQ 4.0."""
        return self._links[0].server_version >= (4, 0)

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the bus is closed")

    # ---- commands ----

    async def send(self, lane: str, message: Message, *, priority: int = 0) -> None:
        self._check_open()
        kind, body = encode(message)
        with trace.sending(trace.RABBITMQ, lane):
            task = parcel(kind, body, message_id=new_id(), priority=max(0, min(priority, MAX_PRIORITY)))
            await self._publisher.put(lane_queue(lane), task)

    async def receive(self, lanes: Sequence[str], *, prefetch: int, ahead: bool = True) -> RabbitReceiver:
        self._check_open()
        if prefetch < 1:
            raise ValueError(f"prefetch must be at least 1 (got {prefetch})")
        names = list(dict.fromkeys(lanes))
        for name in names:
            await self._publisher.declare(lane_queue(name))
        return await self._started(RabbitReceiver(self._links[1], names, prefetch, self._returns, ahead=ahead))

    async def dead_letters(self, limit: int = 1000) -> list[DeadLetter]:
        self._check_open()
        letters: list[DeadLetter] = []
        async with aclosing(browse(self._publisher)) as tasks:
            async for task in tasks:
                letters.append(letter_of(task))
                if len(letters) >= limit:
                    break
        return sorted(letters, key=lambda letter: letter.at)

    async def replay(self, ids: Collection[str]) -> int:
        self._check_open()
        return await replay(self._publisher, ids)

    # ---- events ----

    async def publish(self, message: Message) -> None:
        self._check_open()
        kind, body = encode(message)
        if not isinstance(message, Progress):
            with trace.publishing(trace.RABBITMQ, kind):
                await self._publisher.tell(parcel(kind, body))
        elif self._links[0].up:
            with suppress(UnavailableError):  # the next Progress event supersedes this one
                await self._publisher.tell(parcel(kind, body, durable=False))

    async def subscribe(
        self,
        kinds: Sequence[type[Message]],
        handler: Handler,
        *,
        queue: str = "",
        on_gap: GapHandler | None = None,
    ) -> RabbitSubscription:
        self._check_open()
        names = [kind.__name__ for kind in kinds]
        if queue:
            await self._publisher.declare(facts_queue(queue))
        return await self._started(RabbitSubscription(self._links[1], names, handler, queue, on_gap))

    async def _started(self, listener: Listener) -> Listener:
        self._open = [one for one in self._open if not one.closed] + [listener]
        try:
            async with asyncio.timeout(self._wait_s):
                await listener.started.wait()
        # cancelled calls too: without a caller, the listener would keep receiving messages
        except BaseException as error:
            await listener.close()
            if isinstance(error, TimeoutError):
                raise self._links[1].unavailable(None) from None
            raise
        return listener

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await asyncio.gather(*(listener.close() for listener in self._open))
        await self._publisher.close()
        await asyncio.gather(*(link.close() for link in self._links))
