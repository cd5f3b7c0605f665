"""The message queue: lanes that one worker takes from, and facts that every subscriber hears."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.domain.errors import ConfigurationError
from shared.domain.messages import Message, decode

Handler = Callable[[Message], Awaitable[None]]
GapHandler = Callable[[], Awaitable[None]]

BACKLOG = 100_000
"""Facts an unnamed queue keeps for a subscriber that does not keep up; then it loses the oldest."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A command that nobody will try again by itself; `at` is when it was buried (seconds since 1970)."""

    id: str
    lane: str
    kind: str
    body: str
    reason: str
    returns: int
    at: float

    @property
    def message(self) -> Message:
        """KeyError or ValueError when it is not one that this version knows, which may be why it is here."""
        return decode(self.kind, self.body.encode())


class Delivery(Protocol):
    """One task in a worker's hands; unacknowledged, it goes to another worker when this one dies."""

    message: Message
    redelivered: bool

    async def ack(self) -> None: ...

    async def reject(self, *, delay_s: float = 0.0, counts: bool = True) -> None:
        """Back to its lane, not before `delay_s`; one that `counts` too often is buried.

        Never raises: while the broker is away the task comes back by itself, and at once. Pass False when nothing is
        wrong with the task, or when its row counts its failures: a task that is buried behind its row's back leaves a
        job that waits for ever.
        """
        ...

    async def bury(self, reason: str) -> bool:
        """To the dead-letter queue; while the broker is away, back to its lane. Whether it was buried."""
        ...


class Receiver(Protocol):
    async def get(self) -> Delivery:
        """Waits for the next task; earlier lanes first, and urgent tasks where the bus has priorities. Cancelling
        loses nothing. Waits on while the broker is away; UnavailableError once the receiver is stopped or closed, or
        the bus is closed."""
        ...

    async def stop(self) -> None:
        """Takes nothing more: what nobody asked for yet goes back to its lane at once, what was delivered can still be
        settled. Never raises; where the broker does not answer soon it is not waited for."""
        ...

    async def close(self) -> None:
        """Unacknowledged deliveries go back to their lanes."""
        ...


class Subscription(Protocol):
    async def close(self) -> None: ...


class Bus(Protocol):
    """Calls made while the broker is away wait a bounded time, then raise UnavailableError."""

    process_local: bool

    @property
    def up(self) -> bool:
        """Whether the broker is there, as far as is known: one that is cut off is noticed after a few heartbeats."""
        ...

    @property
    def priorities(self) -> bool:
        """Whether tasks of priority 5 and above overtake those below; an old broker serves all in order."""
        ...

    async def send(self, lane: str, message: Message, *, priority: int = 0) -> None:
        """Returns once the broker has it; after UnavailableError it may have it all the same."""
        ...

    async def receive(self, lanes: Sequence[str], *, prefetch: int, ahead: bool = True) -> Receiver:
        """At most `prefetch` tasks of these lanes unsettled at a time; where the bus can, brought before they are asked
        for. Not `ahead`: only what is asked for, one `get` a task, for who has tasks of another receiver in hand too.
        """
        ...

    async def publish(self, message: Message) -> None:
        """A fact, to everyone subscribed to its kind. Progress is not waited for when the broker is away."""
        ...

    async def subscribe(
        self, kinds: Sequence[type[Message]], handler: Handler, *, queue: str = "", on_gap: GapHandler | None = None
    ) -> Subscription:
        """Facts of these kinds, in order, one at a time. Subscribers naming the same `queue` share one durable queue;
        without a name each hears everything while it listens. A handler's error is logged and the fact retried
        a few times, then dropped. `on_gap` is called, in turn with the facts, when an unnamed subscriber may have
        missed some: its queue was lost with its connection and made anew, or it was too far behind. It is to read
        everything anew, so what still waited by then need not come."""
        ...

    async def dead_letters(self, limit: int = 1000) -> list[DeadLetter]:
        """Oldest first; who looks at the same time sees only the others."""
        ...

    async def replay(self, ids: Collection[str]) -> int:
        """Sends these dead letters to their lanes again, as new; how many of them there were."""
        ...

    async def close(self) -> None: ...


async def open_bus(url: str) -> Bus:
    """`inprocess:` or `amqp[s]://user:password@host:port/vhost` (RabbitMQ)."""
    scheme = url.split(":", 1)[0]
    match scheme:
        case "inprocess":
            from shared.bus.inprocess import InProcessBus

            return InProcessBus()
        case "amqp" | "amqps":
            try:
                from shared.bus.rabbitmq import RabbitBus
            except ImportError as error:
                raise ConfigurationError(f"bus_url: {scheme}: {error}; install afterimage[cluster]") from error
            return await RabbitBus(url).open()
    raise ConfigurationError(f"bus_url: no bus speaks {scheme!r}; use inprocess: or amqp://host")
