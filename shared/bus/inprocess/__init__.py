"""A message queue inside one process that encodes, returns, buries and fans out as a broker does."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from shared.bus import BACKLOG, DeadLetter, Delivery, GapHandler, Handler
from shared.bus.handling import UNKNOWN_AGAIN_S, hand_over, hand_over_fact, of_another_version
from shared.domain.errors import UnavailableError
from shared.domain.ids import new_id
from shared.domain.messages import Message, decode, encode
from shared.domain.types import URGENT
from shared.runtime.telemetry import log

KEPT_DEAD = 10_000
CLOSE_AFTER_S = 5.0
"""How long a closing subscription waits for the handler that is running."""

_log = log("bus")


@dataclass(slots=True)
class Parcel:
    """An encoded command and what happened to it."""

    lane: str
    kind: str
    body: bytes
    urgent: bool
    returns: int = 0
    delivered: bool = False


@dataclass(slots=True, eq=False)
class _Lane:
    urgent: deque[Parcel] = field(default_factory=deque)
    normal: deque[Parcel] = field(default_factory=deque)
    receivers: list[_Receiver] = field(default_factory=list)

    def put(self, parcel: Parcel, *, first: bool = False) -> None:
        band = self.urgent if parcel.urgent else self.normal
        band.appendleft(parcel) if first else band.append(parcel)
        self.wake()

    def take(self) -> Parcel | None:
        band = self.urgent or self.normal
        return band.popleft() if band else None

    def wake(self) -> None:
        for receiver in self.receivers:
            receiver.wake()


class _Delivery:
    __slots__ = ("_parcel", "_receiver", "message", "redelivered")

    def __init__(self, receiver: _Receiver, parcel: Parcel) -> None:
        """KeyError or ValueError for a command that this version does not know."""
        self.message = decode(parcel.kind, parcel.body)
        self.redelivered = parcel.delivered
        parcel.delivered = True
        self._receiver = receiver
        self._parcel = parcel

    async def ack(self) -> None:
        self._receiver.settle(self._parcel)

    async def reject(self, *, delay_s: float = 0.0, counts: bool = True) -> None:
        if self._receiver.settle(self._parcel):
            self._receiver.bus.give_back(self._parcel, delay_s, counts=counts)

    async def bury(self, reason: str) -> bool:
        if not self._receiver.settle(self._parcel):
            return False
        self._receiver.bus.bury(self._parcel, reason)
        return True


class _Receiver:
    def __init__(self, bus: InProcessBus, lanes: Sequence[_Lane], prefetch: int) -> None:
        self.bus = bus
        self._lanes = lanes
        self._prefetch = prefetch
        self._unacked: dict[int, Parcel] = {}
        self._ready = asyncio.Event()
        self._stopped = self._closed = False
        for lane in lanes:
            lane.receivers.append(self)

    def wake(self) -> None:
        self._ready.set()

    def settle(self, parcel: Parcel) -> bool:
        """False when the parcel is no longer in these hands: settled before, or returned by close()."""
        if self._unacked.pop(id(parcel), None) is None:
            return False
        self.wake()
        return True

    def _take(self) -> Parcel | None:
        if len(self._unacked) >= self._prefetch:
            return None
        for lane in self._lanes:
            parcel = lane.take()
            if parcel is not None:
                # last served, last woken: receivers of a lane take turns
                lane.receivers.remove(self)
                lane.receivers.append(self)
                return parcel
        return None

    async def get(self) -> Delivery:
        # nothing is taken before the last await, so a cancelled get() has nothing to lose
        while not self._stopped:
            parcel = self._take()
            if parcel is not None:
                try:
                    delivery = _Delivery(self, parcel)
                except (KeyError, ValueError) as error:
                    self.bus.set_aside(parcel, error)
                    continue
                self._unacked[id(parcel)] = parcel
                return delivery
            self._ready.clear()
            await self._ready.wait()
        raise UnavailableError("the receiver is closed")

    async def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            for lane in self._lanes:
                lane.receivers.remove(self)
            self.wake()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.bus.forget_receiver(self)
        await self.stop()
        returned = list(self._unacked.values())
        self._unacked.clear()
        for parcel in reversed(returned):
            self.bus.lane(parcel.lane).put(parcel, first=True)  # a drain: not counted as a return


@dataclass(slots=True, eq=False)
class _Queue:
    """Facts on their way to one subscriber, or to those that share its name."""

    name: str
    kinds: set[str]
    facts: deque[tuple[str, bytes]] = field(default_factory=deque)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    gap: bool = False

    def put(self, kind: str, body: bytes) -> None:
        if not self.name and len(self.facts) >= BACKLOG:
            self.facts.popleft()
            self.gap = True
            _log.warning("fact_lost", kind=kind, reason=f"a subscriber is {BACKLOG} facts behind")
        self.facts.append((kind, body))
        self.ready.set()


class _Subscription:
    def __init__(self, bus: InProcessBus, queue: _Queue, handler: Handler, on_gap: GapHandler | None) -> None:
        self._bus = bus
        self._queue = queue
        self._handler = handler
        self._on_gap = on_gap
        self._closing = False
        self._task = asyncio.create_task(self._run(), name=f"subscription {queue.name or 'unnamed'}")

    async def _run(self) -> None:
        queue = self._queue
        while not self._closing:
            if not queue.facts:
                queue.ready.clear()
                await queue.ready.wait()
                continue
            if queue.gap:
                queue.gap = False
                if self._on_gap is not None:
                    await hand_over(self._on_gap, "gap", queue.name)
                continue
            fact = queue.facts.popleft()
            try:
                await self._handle(*fact)
            except asyncio.CancelledError:
                queue.facts.appendleft(fact)  # another subscriber of the name hears it
                queue.ready.set()
                raise

    async def _handle(self, kind: str, body: bytes) -> None:
        await hand_over_fact(self._handler, kind, body, self._queue.name)

    async def close(self) -> None:
        self._bus.forget(self._queue, self)
        self._closing = True
        self._queue.ready.set()
        if self._task is asyncio.current_task():
            return  # closed by its own handler: the loop ends when that returns
        done, _ = await asyncio.wait([self._task], timeout=CLOSE_AFTER_S)
        if not done:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task


class InProcessBus:
    """Lives in one event loop; what is queued when the process dies is queued again from the catalog."""

    process_local = True
    priorities = True
    up = True

    def __init__(self, *, delivery_limit: int = 50) -> None:
        """A command rejected more often than `delivery_limit` (where that counts) is buried."""
        self._delivery_limit = delivery_limit
        self._lanes: dict[str, _Lane] = {}
        self._queues: list[_Queue] = []
        self._receivers: list[_Receiver] = []
        self._subscriptions: list[tuple[_Queue, _Subscription]] = []
        self._delayed: set[asyncio.TimerHandle] = set()
        self._dead: deque[tuple[DeadLetter, Parcel]] = deque(maxlen=KEPT_DEAD)
        self._closed = False

    def _open(self) -> None:
        if self._closed:
            raise UnavailableError("the bus is closed")

    def lane(self, name: str) -> _Lane:
        return self._lanes.setdefault(name, _Lane())

    async def send(self, lane: str, message: Message, *, priority: int = 0) -> None:
        self._open()
        self.lane(lane).put(Parcel(lane, *encode(message), urgent=priority >= URGENT))

    async def receive(self, lanes: Sequence[str], *, prefetch: int, ahead: bool = True) -> _Receiver:
        """Nothing is ever brought ahead here."""
        self._open()
        if prefetch < 1:
            raise ValueError(f"prefetch: at least 1, got {prefetch}")
        receiver = _Receiver(self, [self.lane(name) for name in dict.fromkeys(lanes)], prefetch)
        self._receivers.append(receiver)
        return receiver

    def forget_receiver(self, receiver: _Receiver) -> None:
        self._receivers.remove(receiver)

    def give_back(self, parcel: Parcel, delay_s: float, *, counts: bool = True) -> None:
        """Back to its lane: to the front at once, or to the end after the delay."""
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
        """What could not be decoded waits for another version, or is buried where none could."""
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
        for queue in self._queues:
            if kind in queue.kinds:
                queue.put(kind, body)

    async def subscribe(
        self, kinds: Sequence[type[Message]], handler: Handler, *, queue: str = "", on_gap: GapHandler | None = None
    ) -> _Subscription:
        self._open()
        names = {kind.__name__ for kind in kinds}
        shared = next((known for known in self._queues if queue and known.name == queue), None)
        if shared is None:
            shared = _Queue(queue, names)
            self._queues.append(shared)
        shared.kinds |= names
        subscription = _Subscription(self, shared, handler, on_gap)
        self._subscriptions.append((shared, subscription))
        return subscription

    def forget(self, queue: _Queue, subscription: _Subscription) -> None:
        """A named queue outlives its subscribers; an unnamed one goes with its only one."""
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
