"""Returns unfinished tasks as copies: to their lane, perhaps after a delay, or to the dead-letter queue."""

from __future__ import annotations

import time
from typing import Any, TypeAlias

from aio_pika import Message as Parcel
from aio_pika.abc import AbstractIncomingMessage

from shared.bus.rabbitmq.publisher import Publisher, parcel
from shared.bus.rabbitmq.queues import DEAD_LETTERS, lane_queue, retry_queue
from shared.runtime.telemetry import log
from shared.runtime.tracing import HEADERS

RETURNS, SEEN = "afterimage-returns", "afterimage-seen"
"""Headers of a copy: the number of returns for the task's own fault, and a mark that it was delivered before."""
LANE, REASON, AT = "afterimage-lane", "afterimage-reason", "afterimage-at-ms"
"""Headers of a dead letter: its lane, and the reason and time of its dead-lettering."""

KEPT_S = 30 * 86400.0
"""Seconds after which the broker drops a dead letter that is the oldest, or that somebody lists."""

Other: TypeAlias = tuple[str, bytes] | None

_log = log("bus")


class Returns:
    """Returns tasks; dead-letters a task returned more often than the limit for its own fault."""

    def __init__(self, publisher: Publisher, delivery_limit: int) -> None:
        self._publisher, self._delivery_limit = publisher, delivery_limit

    async def give_back(
        self, lane: str, task: AbstractIncomingMessage, delay_s: float, *, counts: bool, other: Other = None
    ) -> None:
        """Put a copy at the lane's end, after a delay queue if `delay_s` > 0; dead-letter it beyond the limit.

        other: kind and body of the copy, if not the task's own.
        """
        returns = _returns_of(task) + counts
        if returns > self._delivery_limit:
            limit = f"returned {returns} times, more than the delivery limit of {self._delivery_limit}"
            await self.bury(lane, task, limit, other)
        else:
            queue = lane_queue(lane) if delay_s <= 0 else retry_queue(lane, delay_s)
            await self._publisher.put(queue, _copy(task, {RETURNS: returns, SEEN: True}, other))

    async def bury(self, lane: str, task: AbstractIncomingMessage, reason: str, other: Other = None) -> None:
        _log.warning("dead_letter", lane=lane, kind=task.type, reason=reason)
        headers = {LANE: lane, REASON: reason[:2000], AT: time.time_ns() // 1_000_000, RETURNS: _returns_of(task)}
        letter = _copy(task, headers, other)
        letter.expiration = KEPT_S
        await self._publisher.put(DEAD_LETTERS, letter)


def _returns_of(task: AbstractIncomingMessage) -> int:
    returns = task.headers.get(RETURNS, 0)
    return returns if isinstance(returns, int) else 0


def _copy(task: AbstractIncomingMessage, headers: dict[str, Any], other: Other) -> Parcel:
    """Copy the task with this system's headers only: the broker's headers describe the old message."""
    own = {name: task.headers[name] for name in HEADERS if name in task.headers}
    kind, body = other or (task.type or "", task.body)
    return parcel(kind, body, message_id=task.message_id, priority=task.priority or 0, headers={**own, **headers})
