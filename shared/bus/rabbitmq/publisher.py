"""Publishing with confirms: a call returns once the broker has the message, or raises after a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from aio_pika import DeliveryMode, ExchangeType, Message
from aio_pika.abc import AbstractChannel, AbstractExchange
from aio_pika.exceptions import ChannelPreconditionFailed, PublishError
from aiormq.exceptions import ChannelAccessRefused

from shared.bus.rabbitmq.channels import NOT_OURS
from shared.bus.rabbitmq.declaring import Queues
from shared.bus.rabbitmq.link import FIRST_RETRY_S, GONE, Link
from shared.bus.rabbitmq.queues import FACTS, Queue
from shared.domain.errors import ConfigurationError, InvalidRequestError
from shared.runtime import tracing

MAX_BODY = 256 * 1024
"""Largest message in bytes: enough for a thousand entry ids or a preview, the largest commands and events."""


def parcel(kind: str, body: bytes, *, durable: bool = True, **properties: Any) -> Message:
    """Return an AMQP message: JSON, its kind, and its trace; raise InvalidRequestError beyond `MAX_BODY`."""
    if len(body) > MAX_BODY:
        rule = f"must have at most {MAX_BODY} bytes on the bus; put images and latents into the blob store"
        raise InvalidRequestError(kind, rule, len(body))
    headers = {**tracing.outgoing(), **properties.pop("headers", {})}
    mode = DeliveryMode.PERSISTENT if durable else DeliveryMode.NOT_PERSISTENT
    return Message(body, type=kind, headers=headers, delivery_mode=mode, content_type="application/json", **properties)


async def facts_exchange(channel: AbstractChannel) -> AbstractExchange:
    return await channel.declare_exchange(FACTS, ExchangeType.TOPIC, durable=True)


class Publisher:
    """One channel with confirms, on a connection that only publishes.

    A broker that blocks publishers for lack of memory or disk still accepts acknowledgements on the other connection.
    """

    def __init__(self, link: Link, wait_s: float) -> None:
        self.link = link
        self._wait_s = wait_s
        self._opening = asyncio.Lock()
        self._channel: AbstractChannel | None = None
        self._facts: AbstractExchange | None = None
        self._queues = Queues(link, wait_s)

    async def put(self, queue: Queue, message: Message) -> None:
        """Publish to a queue; raise UnavailableError without a confirm in time (the broker may have the message)."""

        async def once() -> None:
            await self._queues.settled(queue)
            channel = await self._open()
            try:
                await channel.default_exchange.publish(message, queue.name, mandatory=True)
            except PublishError:  # another program deleted the queue
                self._queues.forget(queue)
                raise

        await self._patiently(once, f"queue {queue.name!r}")

    async def tell(self, message: Message) -> None:
        """Publish to every queue bound to the message's kind; raise UnavailableError as `put` does."""

        async def once() -> None:
            await self._open()
            assert self._facts is not None
            await self._facts.publish(message, message.type or "", mandatory=False)

        await self._patiently(once)

    async def declare(self, queue: Queue) -> None:
        """Declare the queue; raise ConfigurationError if it exists with other arguments."""
        await self._patiently(lambda: self._queues.made(queue), f"queue {queue.name!r}")

    async def prepare(self) -> None:
        """Declare the exchange of events; raise ConfigurationError if it exists with another type."""

        async def once() -> None:
            await self._open()

        await self._patiently(once)

    async def channel(self) -> AbstractChannel:
        """Open another channel, without confirms."""
        return await self.link.channel(self._wait_s)

    async def close(self) -> None:
        await self._queues.close()

    async def _patiently(
        self, once: Callable[[], Coroutine[Any, Any, None]], what: str = f"exchange {FACTS!r}"
    ) -> None:
        """Retry until success or until `wait_s` is over: a message may arrive twice, but is never lost."""
        loop = asyncio.get_running_loop()
        until, last = loop.time() + self._wait_s, None
        while True:
            try:
                async with asyncio.timeout_at(until):
                    return await once()
            except ChannelPreconditionFailed as error:
                said = f"bus_url: {what} at {self.link.place} {NOT_OURS} ({error})"
                raise ConfigurationError(said, outside=f"bus_url: {what} {NOT_OURS}") from error
            except ChannelAccessRefused as error:
                said = f"bus_url: the user may not use {what} at {self.link.place} ({error})"
                hint = f"bus_url: the user may not use {what}"
                raise ConfigurationError(said, outside=hint) from error
            except GONE as error:
                if loop.time() >= until:
                    raise self.link.unavailable(last or error) from error
                last = error
            await asyncio.sleep(FIRST_RETRY_S)

    async def _open(self) -> AbstractChannel:
        if self._channel is not None and not self._channel.is_closed:
            return self._channel
        async with self._opening:
            if self._channel is None or self._channel.is_closed:
                channel = await self.link.channel(self._wait_s, confirms=True)
                self._facts = await facts_exchange(channel)
                self._channel = channel
            return self._channel
