"""A task in someone's hands: acknowledged, or moved to where it waits, or lies, as a copy that the broker confirmed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Protocol

from aio_pika.abc import AbstractIncomingMessage

from shared.bus.rabbitmq.link import GONE
from shared.bus.rabbitmq.returns import SEEN, Returns
from shared.domain.errors import AfterimageError, ConfigurationError
from shared.domain.messages import Message, decode
from shared.runtime.telemetry import log

NOT_OURS_TASK_S = 5.0
"""How long a task stays in hand whose retry or dead-letter queue is another's, so that it does not spin."""

_log = log("bus")


class Hands(Protocol):
    """Who has the task."""

    returns: Returns

    def settle(self, task: AbstractIncomingMessage) -> bool:
        """False when the task is no longer in these hands: settled before, or returned with its channel."""
        ...


class RabbitDelivery:
    """A task on the channel it came by; when that is lost the broker gives the task to someone else by itself."""

    __slots__ = ("_hands", "_lane", "_task", "message", "redelivered")

    def __init__(self, hands: Hands, lane: str, task: AbstractIncomingMessage) -> None:
        """KeyError or ValueError for a command that this version does not know."""
        self.message: Message = decode(task.type or "", task.body)
        self.redelivered = bool(task.redelivered or task.headers.get(SEEN))
        self._hands, self._lane, self._task = hands, lane, task

    async def ack(self) -> None:
        if self._hands.settle(self._task):
            with suppress(*GONE):
                await self._task.ack()

    async def reject(self, *, delay_s: float = 0.0, counts: bool = True) -> None:
        if self._hands.settle(self._task):
            await moved(self._task, self._hands.returns.give_back(self._lane, self._task, delay_s, counts=counts))

    async def bury(self, reason: str) -> bool:
        if not self._hands.settle(self._task):
            return False
        return await moved(self._task, self._hands.returns.bury(self._lane, self._task, reason))


async def moved(task: AbstractIncomingMessage, copying: Awaitable[None]) -> bool:
    """Whether the broker took the copy. First that, confirmed, then the acknowledgement: in between the task is there
    twice, never not at all.

    What the broker does not take now goes back to its lane, undelayed; after a pause where it never will.
    """
    try:
        await copying
    except ConfigurationError as error:
        _log.error("task_returned", task=task.message_id, error=str(error), again_in_s=NOT_OURS_TASK_S)
        await asyncio.sleep(NOT_OURS_TASK_S)
        with suppress(*GONE):
            await task.nack(requeue=True)
    except AfterimageError as error:
        _log.warning("task_returned", task=task.message_id, error=str(error))
        with suppress(*GONE):
            await task.nack(requeue=True)
    else:
        with suppress(*GONE):
            await task.ack()
        return True
    return False
