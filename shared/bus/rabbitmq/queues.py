"""The broker's queues and their arguments. A queue must always be declared with the same arguments."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

FACTS = "afterimage.facts"
"""Topic exchange of all events; an event's routing key is its kind."""
RETURNS_BACKSTOP = 200
"""Returns after which the broker itself dead-letters a task (its workers died, or drained).

The catalog counts attempts; this limit only ends tasks that the catalog never sees.
"""
_STEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
_NO_LIMIT = 1_000_000
"""In effect no limit: brokers since 4.0 drop a message after 20 returns by default, and not all accept -1."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A durable queue, quorum by default, so that a confirmed message is on a majority of the broker's nodes."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def declared_with(self) -> dict[str, Any]:
        return {"x-queue-type": "quorum", **self.arguments}


def _dead_to(queue: str) -> dict[str, Any]:
    """Return arguments that dead-letter to `queue`, which confirms each dead letter (RabbitMQ ≥ 3.10)."""
    return {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": queue,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",  # required by at-least-once; without a length limit no queue overflows
    }


DEAD_LETTERS = Queue("afterimage.dead-letters", {"x-delivery-limit": _NO_LIMIT})


def lane_queue(lane: str) -> Queue:
    return Queue(lane, {"x-delivery-limit": RETURNS_BACKSTOP, **_dead_to(DEAD_LETTERS.name)})


def delay_of(delay_s: float) -> float:
    """Return the shortest supported delay of at least `delay_s`.

    Each delay has its own queue, because only equal delays end in the order they began. A ladder limits the number of
    queues.
    """
    power = 10.0 ** math.floor(math.log10(max(delay_s, 0.01)))
    return next((power * step for step in _STEPS if power * step >= delay_s * (1 - 1e-9)), 10 * power)


def retry_queue(lane: str, delay_s: float) -> Queue:
    """Return the queue in which a lane's tasks wait for a delay; afterwards they go to the lane's end."""
    ttl_ms = round(delay_of(delay_s) * 1000)
    return Queue(
        f"{lane}.again.{ttl_ms}ms",
        {"x-message-ttl": ttl_ms, "x-delivery-limit": _NO_LIMIT, **_dead_to(lane)},
    )


def settling_queue(name: str, settle_s: float) -> Queue:
    """Return the always empty marker queue of a queue, which expires `settle_s` seconds after its declaration."""
    ttl_ms = max(round(settle_s * 1000), 1)
    return Queue(f"{name}.settling.{ttl_ms}ms", {"x-queue-type": "classic", "x-expires": ttl_ms})


def facts_queue(name: str) -> Queue:
    """Return the event queue that subscribers of this name share."""
    return Queue(f"{FACTS}.{name}", {"x-delivery-limit": RETURNS_BACKSTOP})
