"""The message queue: lanes, whose tasks each go to one worker, and events, which go to every subscriber."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.domain.errors import ConfigurationError
from shared.domain.messages import Message, decode

Handler = Callable[[Message], Awaitable[None]]
GapHandler = Callable[[], Awaitable[None]]

BACKLOG = 100_000
"""Events kept in an unnamed queue for a slow subscriber; beyond that, the oldest are dropped."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A command that is no longer retried automatically; `at` is the time of dead-lettering (seconds since 1970)."""

    id: str
    lane: str
    kind: str
    body: str
    reason: str
    returns: int
    at: float

    @property
    def message(self) -> Message:
        """Return the decoded message.

        Raise KeyError or ValueError for a kind that this version does not know, which may be the cause of the dead
        letter.
        """
        return decode(self.kind, self.body.encode())


class Delivery(Protocol):
    """One task delivered to a worker; if the worker dies before acknowledging, another worker receives the task."""

    message: Message
    redelivered: bool
    lane: str

    def stand_for(self, message: Message) -> None:
        """Make this delivery the task of another message, which a return or a dead letter then carries.

        If the worker dies, the bus may deliver the first message again.
        """
        ...

    async def ack(self) -> None: ...

    async def reject(self, *, delay_s: float = 0.0, counts: bool = True) -> None:
        """Return the task to its lane, after at least `delay_s`; with too many returns that `counts`, dead-letter it.

        Never raises: while the broker is unreachable, the task returns by itself at once. Pass `counts` False if
        nothing is wrong with the task, or if its row counts its failures. A task that is dead-lettered without a change
        of its row would leave the job waiting forever.
        """
        ...

    async def bury(self, reason: str) -> bool:
        """Move the task to the dead-letter queue, or back to its lane if the broker is unreachable.

        Return whether the task was dead-lettered.
        """
        ...


class Receiver(Protocol):
    async def get(self) -> Delivery:
        """Wait for the next task: earlier lanes first, and urgent tasks first if the bus has priorities.

        A cancelled call loses no task. The call keeps waiting while the broker is unreachable. Raise UnavailableError
        once the receiver is stopped or closed, or the bus is closed.
        """
        ...

    async def stop(self) -> None:
        """Take no more tasks: prefetched tasks return to their lanes at once, delivered tasks can still be settled.

        Never raises, and does not wait long for an unresponsive broker.
        """
        ...

    async def close(self) -> None:
        """Return unacknowledged deliveries to their lanes, and end."""
        ...


class Subscription(Protocol):
    async def close(self) -> None: ...


class Bus(Protocol):
    """A message bus. Calls made while the broker is unreachable wait a bounded time, then raise UnavailableError."""

    process_local: bool

    @property
    def up(self) -> bool:
        """True if the broker is reachable as far as known; a cut connection is noticed after a few heartbeats."""
        ...

    @property
    def full(self) -> str:
        """Why the broker takes no messages, as far as known: its disk or memory is full; empty if it takes some."""
        ...

    @property
    def priorities(self) -> bool:
        """True if tasks of priority 5 and above overtake the others; an old broker serves all tasks in order."""
        ...

    async def send(self, lane: str, message: Message, *, priority: int = 0) -> None:
        """Send a command to a lane; return once the broker has it, which may also be so after UnavailableError."""
        ...

    async def receive(self, lanes: Sequence[str], *, prefetch: int, ahead: bool = True) -> Receiver:
        """Open a receiver with at most `prefetch` unsettled tasks of these lanes.

        With `ahead`, a bus that can do so delivers tasks before they are requested. Without, each `get` requests one
        task, for callers that also hold tasks of another receiver.
        """
        ...

    async def publish(self, message: Message) -> None:
        """Publish an event to all subscribers of its kind; Progress does not wait for an unreachable broker."""
        ...

    async def subscribe(
        self, kinds: Sequence[type[Message]], handler: Handler, *, queue: str = "", on_gap: GapHandler | None = None
    ) -> Subscription:
        """Call `handler` with events of these kinds, in order, one at a time.

        Subscribers that name the same `queue` share one durable queue. Without a name, each receives all events while
        subscribed. If a handler raises, the error is logged and the event retried a few times, then dropped.

        `on_gap` is called in order with the events when an unnamed subscriber may have missed some. Its queue was lost
        with its connection and created anew, or it was too far behind. `on_gap` must then reread everything, so events
        that still waited may be dropped.
        """
        ...

    async def dead_letters(self, limit: int = 1000) -> list[DeadLetter]:
        """Return dead letters, oldest first. A concurrent call sees only the letters that this call does not hold."""
        ...

    async def replay(self, ids: Collection[str]) -> int:
        """Send these dead letters to their lanes again, as new tasks; return how many existed."""
        ...

    async def close(self) -> None: ...


async def open_bus(url: str) -> Bus:
    """Open the bus of `inprocess:` or `amqp[s]://user:password@host:port/vhost` (RabbitMQ)."""
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
    raise ConfigurationError(
        f"bus_url: scheme must be inprocess, amqp or amqps (got {scheme!r}); use inprocess: or amqp://host"
    )
