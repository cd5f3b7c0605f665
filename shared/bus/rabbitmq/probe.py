"""A look at a RabbitMQ broker that declares nothing."""

from __future__ import annotations

import time

from aio_pika.exceptions import ChannelNotFoundEntity

from shared.bus.rabbitmq.link import Link, close
from shared.bus.rabbitmq.queues import DEAD_LETTERS
from shared.domain.errors import ConfigurationError
from shared.runtime.probes import Probe

LEAST, WITH_PRIORITIES = (3, 10), (4, 0)
"""Least versions: for dead letters with confirms, and for urgent tasks first."""


async def probe_broker(url: str, limit_s: float) -> Probe:
    """Ask the broker for its version and our queues; raise UnavailableError for none that answers within `limit_s`.

    AMQP has no request for the broker's time.
    """
    link = Link(url, "looks")
    try:
        try:
            connection = await link.ready(limit_s)
        except ConfigurationError as error:
            return Probe(f"RabbitMQ at {link.place}", 0.0, wrong=str(error))
        begun = time.monotonic()
        channel = await connection.channel(publisher_confirms=False)
        took = time.monotonic() - begun
        try:
            await channel.declare_queue(DEAD_LETTERS.name, passive=True)
            found = "queues declared"
        except ChannelNotFoundEntity:
            found = "no queues yet, the first start declares them"
        await close(channel)
        version = link.server_version
    finally:
        await link.close()
    said, least, first = (".".join(map(str, numbers)) for numbers in (version, LEAST, WITH_PRIORITIES))
    wrong, warnings = "", list[str]()
    if version < LEAST:
        wrong = f"bus_url: RabbitMQ must be {least} or newer (is {said}); upgrade the broker"
    elif version < WITH_PRIORITIES:
        warnings.append(f"before RabbitMQ {first} the priority of a request has no effect")
    return Probe(f"RabbitMQ {said} at {link.place}", took, found, tuple(warnings), wrong)
