"""Reads the dead-letter queue, and sends dead letters back to their lanes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any

from aio_pika.abc import AbstractIncomingMessage

from shared.bus import DeadLetter
from shared.bus.rabbitmq.channels import one_of
from shared.bus.rabbitmq.link import GONE, close
from shared.bus.rabbitmq.publisher import Publisher, parcel
from shared.bus.rabbitmq.queues import DEAD_LETTERS, lane_queue
from shared.bus.rabbitmq.returns import AT, LANE, REASON, RETURNS


def letter_of(task: AbstractIncomingMessage) -> DeadLetter:
    """Return the message as a DeadLetter.

    A task that this code dead-lettered has its lane and reason in headers. A task that the broker dead-lettered has
    them in `x-death`.
    """
    headers: dict[str, Any] = task.headers
    death: dict[str, Any] = next(iter(headers.get("x-death") or ()), {})
    died = death.get("time")
    at = headers[AT] / 1000 if AT in headers else died.timestamp() if isinstance(died, datetime) else 0.0
    reason = headers.get(REASON) or f"the broker reports {death.get('reason', 'no reason')} (its worker died each time)"
    return DeadLetter(
        id=task.message_id or "",
        lane=str(headers.get(LANE) or death.get("queue", "")),
        kind=task.type or "",
        body=task.body.decode(errors="replace"),
        reason=str(reason),
        returns=int(headers.get(RETURNS) or 0),
        at=at,
    )


async def browse(publisher: Publisher) -> AsyncGenerator[AbstractIncomingMessage, None]:
    """Yield every dead letter. All are held until the last is read; those not acknowledged then return to the queue."""
    await publisher.declare(DEAD_LETTERS)
    channel = await publisher.channel()
    try:
        queue = await channel.get_queue(DEAD_LETTERS.name, ensure=False)
        while (task := await one_of(queue)) is not None:
            yield task
    except GONE as error:
        raise publisher.link.unavailable(error) from error
    finally:
        await close(channel)


async def replay(publisher: Publisher, ids: Collection[str]) -> int:
    """Send these dead letters to their lanes again; return how many.

    The lane confirms each task before the task leaves the dead-letter queue. In between the task exists twice; it is
    never missing.
    """
    sent, wanted = 0, set(ids)
    async with aclosing(browse(publisher)) as tasks:
        async for task in tasks:
            letter = letter_of(task)
            if letter.id not in wanted:
                continue
            copy = parcel(letter.kind, task.body, message_id=letter.id, priority=task.priority or 0)
            await publisher.put(lane_queue(letter.lane), copy)
            with suppress(*GONE):
                await task.ack()
            sent += 1
    return sent
