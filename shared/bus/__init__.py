"""The message queue: lanes that one worker takes from, and facts that every subscriber hears."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from shared.errors import ConfigurationError
from shared.messages import Message

Handler = Callable[[Message], Awaitable[None]]


class Delivery(Protocol):
    """One task in a worker's hands; unacknowledged, it goes to another worker when this one dies."""

    message: Message
    redelivered: bool

    async def ack(self) -> None: ...

    async def reject(self, *, delay_s: float = 0.0, counts: bool = True) -> None:
        """Back to its lane, not before `delay_s`; one that `counts` too often is buried.

        Pass False when nothing is wrong with the task, or when its row counts its failures: a task that is buried
        behind its row's back leaves a job that waits for ever.
        """
        ...

    async def bury(self, reason: str) -> None:
        """To the dead-letter queue."""
        ...


class Receiver(Protocol):
    async def get(self) -> Delivery:
        """Waits for the next task; earlier lanes and higher priorities first. Cancelling loses nothing."""
        ...

    async def close(self) -> None:
        """Unacknowledged deliveries go back to their lanes."""
        ...


class Subscription(Protocol):
    async def close(self) -> None: ...


class Bus(Protocol):
    process_local: bool

    async def send(self, lane: str, message: Message, *, priority: int = 0) -> None:
        """Returns once the broker has it."""
        ...

    async def receive(self, lanes: Sequence[str], *, prefetch: int) -> Receiver: ...

    async def publish(self, message: Message) -> None:
        """A fact, to everyone subscribed to its kind."""
        ...

    async def subscribe(self, kinds: Sequence[type[Message]], handler: Handler, *, queue: str = "") -> Subscription:
        """Facts of these kinds, in order, one at a time. Subscribers naming the same `queue` share one durable queue;
        without a name each hears everything while it listens. A handler's error is logged and the fact retried
        a few times, then dropped."""
        ...

    async def close(self) -> None: ...


async def open_bus(url: str) -> Bus:
    """`inprocess:` (later `amqp://…`)."""
    scheme = url.split(":", 1)[0]
    if scheme == "inprocess":
        from shared.bus.inprocess import InProcessBus

        return InProcessBus()
    raise ConfigurationError(f"bus_url: no bus speaks {scheme!r}; use inprocess:")
