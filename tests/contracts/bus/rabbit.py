"""RabbitMQ behind the adapter's back."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import aio_pika

from tests.contracts.servers import url_of


@contextlib.asynccontextmanager
async def channel() -> AsyncIterator[aio_pika.abc.AbstractChannel]:
    connection = await aio_pika.connect(url_of("rabbitmq"))
    async with connection:
        yield await connection.channel()
