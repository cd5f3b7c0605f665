"""The queues of the broker and their arguments; what is declared once must be declared alike for ever."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

FACTS = "afterimage.facts"
"""Topic exchange of all facts; a fact's routing key is its kind."""
RETURNS_BACKSTOP = 200
"""How often the broker itself takes a task back (its workers died, or drained) before it is dead. Attempts are counted
in the catalog; this only ends what the catalog never sees."""
_STEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
_NO_LIMIT = 1_000_000
"""Brokers since 4.0 drop what was returned 20 times unless a queue says otherwise; not all take -1 for never."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A durable queue; quorum unless its arguments say otherwise, so that a confirmed message is on a majority of the
    broker's nodes."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def declared_with(self) -> dict[str, Any]:
        return {"x-queue-type": "quorum", **self.arguments}


def _dead_to(queue: str) -> dict[str, Any]:
    """Dead letters go to `queue`, and leave only when that has confirmed them (RabbitMQ ≥ 3.10)."""
    return {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": queue,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",  # what at-least-once asks for; without a length limit nothing overflows
    }


DEAD_LETTERS = Queue("afterimage.dead-letters", {"x-delivery-limit": _NO_LIMIT})


def lane_queue(lane: str) -> Queue:
    return Queue(lane, {"x-delivery-limit": RETURNS_BACKSTOP, **_dead_to(DEAD_LETTERS.name)})


def delay_of(delay_s: float) -> float:
    """The next delay, not shorter, that a retry queue stands for: a ladder, because each delay has its own queue and
    only equal delays end in the order they began."""
    power = 10.0 ** math.floor(math.log10(max(delay_s, 0.01)))
    return next((power * step for step in _STEPS if power * step >= delay_s * (1 - 1e-9)), 10 * power)


def retry_queue(lane: str, delay_s: float) -> Queue:
    """Where tasks of a lane wait out a delay; then they go back to the lane's end."""
    ttl_ms = round(delay_of(delay_s) * 1000)
    return Queue(
        f"{lane}.again.{ttl_ms}ms",
        {"x-message-ttl": ttl_ms, "x-delivery-limit": _NO_LIMIT, **_dead_to(lane)},
    )


def settling_queue(name: str, settle_s: float) -> Queue:
    """Empty for ever, and gone by itself: says that the queue of that name is younger than `settle_s` seconds."""
    ttl_ms = max(round(settle_s * 1000), 1)
    return Queue(f"{name}.settling.{ttl_ms}ms", {"x-queue-type": "classic", "x-expires": ttl_ms})


def facts_queue(name: str) -> Queue:
    """Shared by the subscribers that name it."""
    return Queue(f"{FACTS}.{name}", {"x-delivery-limit": RETURNS_BACKSTOP})
