"""A message queue inside one process that encodes, redelivers, dead-letters and fans out like a broker."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Collection, Sequence

from shared.bus import DeadLetter, GapHandler, Handler, trace
from shared.bus.handling import UNKNOWN_AGAIN_S, of_another_version
from shared.bus.inprocess.lanes import Lane, Parcel, Receiver
from shared.bus.inprocess.subscriptions import Queue, Subscription
from shared.domain.errors import UnavailableError
from shared.domain.ids import new_id
from shared.domain.messages import Message, encode
from shared.domain.types import URGENT
from shared.runtime import tracing
from shared.runtime.telemetry import log

KEPT_DEAD = 10_000

_log = log("bus")


class InProcessBus:
    """Belongs to one event loop. When the process dies, its queued tasks are recovered from the catalog."""

    process_local = True
    priorities = True
    up = True
    full = ""

    def __init__(self, *, delivery_limit: int = 50) -> None:
        """A command returned more than `delivery_limit` times (if the return counts) is dead-lettered."""
        self._delivery_limit = delivery_limit
        self._lanes: dict[str, Lane] = {}
        self._queues: list[Queue] = []
        self._receivers: list[Receiver] = []
        self._subscriptions: list[tuple[Queue, Subscription]] = []
        self._delayed: set[asyncio.TimerHandle] = set()
        self._dead: deque[tuple[DeadLetter, Parcel]] = deque(maxlen=KEPT_DEAD)
        self._closed = False

    def _open(self) -> None:
        if self._closed:
            raise UnavailableError("the bus is closed")

    def lane(self, name: str) -> Lane:
        return self._lanes.setdefault(name, Lane())

    async def send(self, lane: str, message: Message, *, priority: int = 0) -> None:
        self._open()
        with trace.sending(trace.IN_PROCESS, lane):
            parcel = Parcel(lane, *encode(message), priority >= URGENT, tracing.outgoing())
            self.lane(lane).put(parcel)

    async def receive(self, lanes: Sequence[str], *, prefetch: int, ahead: bool = True) -> Receiver:
        """Open a receiver; this bus never delivers ahead."""
        self._open()
        if prefetch < 1:
            raise ValueError(f"prefetch must be at least 1 (got {prefetch})")
        receiver = Receiver(self, [self.lane(name) for name in dict.fromkeys(lanes)], prefetch)
        self._receivers.append(receiver)
        return receiver

    def forget_receiver(self, receiver: Receiver) -> None:
        self._receivers.remove(receiver)

    def give_back(self, parcel: Parcel, delay_s: float, *, counts: bool = True) -> None:
        """Return a task to its lane: to the front at once, or to the end after the delay."""
        parcel.returns += counts
        if parcel.returns > self._delivery_limit:
            self.bury(
                parcel, f"returned {parcel.returns} times, more than the delivery limit of {self._delivery_limit}"
            )
        elif delay_s <= 0:
            self.lane(parcel.lane).put(parcel, first=True)
        else:

            def due() -> None:
                self._delayed.discard(timer)
                self.lane(parcel.lane).put(parcel)

            timer = asyncio.get_running_loop().call_later(delay_s, due)
            self._delayed.add(timer)

    def set_aside(self, parcel: Parcel, error: Exception) -> None:
        """Return a command that cannot be decoded, or dead-letter it if no version could decode it."""
        if of_another_version(parcel.kind, parcel.body, error):
            self.give_back(parcel, UNKNOWN_AGAIN_S, counts=False)
        else:
            self.bury(parcel, f"not understood: {error!r}")

    def bury(self, parcel: Parcel, reason: str) -> None:
        _log.warning("dead_letter", lane=parcel.lane, kind=parcel.kind, reason=reason)
        letter = DeadLetter(
            new_id(),
            parcel.lane,
            parcel.kind,
            parcel.body.decode(errors="replace"),
            reason,
            parcel.returns,
            time.time(),
        )
        self._dead.append((letter, parcel))

    async def dead_letters(self, limit: int = 1000) -> list[DeadLetter]:
        self._open()
        return [letter for letter, _ in self._dead][:limit]

    async def replay(self, ids: Collection[str]) -> int:
        self._open()
        again = [pair for pair in self._dead if pair[0].id in ids]
        for pair in again:
            self._dead.remove(pair)
            parcel = pair[1]
            self.lane(parcel.lane).put(Parcel(parcel.lane, parcel.kind, parcel.body, urgent=parcel.urgent))
        return len(again)

    async def publish(self, message: Message) -> None:
        self._open()
        kind, body = encode(message)
        with trace.publishing(trace.IN_PROCESS, kind):
            headers = tracing.outgoing()
            for queue in self._queues:
                if kind in queue.kinds:
                    queue.put(kind, body, headers)

    async def subscribe(
        self, kinds: Sequence[type[Message]], handler: Handler, *, queue: str = "", on_gap: GapHandler | None = None
    ) -> Subscription:
        self._open()
        names = {kind.__name__ for kind in kinds}
        shared = next((known for known in self._queues if queue and known.name == queue), None)
        if shared is None:
            shared = Queue(queue, names)
            self._queues.append(shared)
        shared.kinds |= names
        subscription = Subscription(self, shared, handler, on_gap)
        self._subscriptions.append((shared, subscription))
        return subscription

    def forget(self, queue: Queue, subscription: Subscription) -> None:
        """Remove a subscription, and with it an unnamed queue; a named queue outlives its subscribers."""
        self._subscriptions = [pair for pair in self._subscriptions if pair[1] is not subscription]
        if not queue.name and queue in self._queues:
            self._queues.remove(queue)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for timer in self._delayed:
            timer.cancel()
        self._delayed.clear()
        await asyncio.gather(*(receiver.close() for receiver in self._receivers))
        await asyncio.gather(*(subscription.close() for _, subscription in self._subscriptions))
