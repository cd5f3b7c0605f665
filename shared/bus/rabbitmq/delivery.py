"""A delivered task: acknowledged, or moved by a copy that the broker confirmed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Protocol

from aio_pika.abc import AbstractIncomingMessage

from shared.bus.rabbitmq.link import GONE
from shared.bus.rabbitmq.returns import SEEN, Returns
from shared.domain.errors import AfterimageError, ConfigurationError
from shared.domain.messages import Message, decode, encode
from shared.runtime.telemetry import log

NOT_OURS_TASK_S = 5.0
"""Seconds for which a task is held whose retry or dead-letter queue has other arguments, to avoid a busy loop."""

_log = log("bus")


class Hands(Protocol):
    """The receiver that holds the task."""

    returns: Returns

    def settle(self, task: AbstractIncomingMessage) -> bool:
        """Return False if the receiver no longer holds the task: settled before, or returned with its channel."""
        ...


class RabbitDelivery:
    """A task on the channel that delivered it. If that channel is lost, the broker redelivers the task."""

    __slots__ = ("_hands", "_other", "_task", "lane", "message", "redelivered")

    def __init__(self, hands: Hands, lane: str, task: AbstractIncomingMessage) -> None:
        """Decode the task; raise KeyError or ValueError for a command that this version does not know."""
        self.message: Message = decode(task.type or "", task.body)
        self.redelivered = bool(task.redelivered or task.headers.get(SEEN))
        self._hands, self.lane, self._task = hands, lane, task
        self._other: tuple[str, bytes] | None = None
        """Kind and body of the message that this delivery stands for instead of its own."""

    def stand_for(self, message: Message) -> None:
        self.message, self._other = message, encode(message)

    async def ack(self) -> None:
        if self._hands.settle(self._task):
            with suppress(*GONE):
                await self._task.ack()

    async def reject(self, *, delay_s: float = 0.0, counts: bool = True) -> None:
        if self._hands.settle(self._task):
            returns = self._hands.returns
            await moved(self._task, returns.give_back(self.lane, self._task, delay_s, counts=counts, other=self._other))

    async def bury(self, reason: str) -> bool:
        if not self._hands.settle(self._task):
            return False
        return await moved(self._task, self._hands.returns.bury(self.lane, self._task, reason, self._other))


async def moved(task: AbstractIncomingMessage, copying: Awaitable[None]) -> bool:
    """Wait for the copy, then acknowledge the task; return whether the broker took the copy.

    The copy is confirmed before the acknowledgement: in between the task exists twice, and it is never missing. If the
    broker does not take the copy, the task returns to its lane without delay. If the broker will never take the copy,
    the task returns after a pause.
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
