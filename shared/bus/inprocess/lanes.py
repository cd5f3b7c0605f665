"""Lanes of commands inside one process, and the receivers that take deliveries from them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.bus import Delivery
from shared.domain.errors import UnavailableError
from shared.domain.messages import Message, decode, encode
from shared.runtime import tracing

if TYPE_CHECKING:  # the bus imports this module
    from shared.bus.inprocess import InProcessBus


@dataclass(slots=True)
class Parcel:
    """An encoded command with its delivery history."""

    lane: str
    kind: str
    body: bytes
    urgent: bool
    trace: Mapping[str, str] = field(default_factory=dict)
    returns: int = 0
    delivered: bool = False


@dataclass(slots=True, eq=False)
class Lane:
    urgent: deque[Parcel] = field(default_factory=deque)
    normal: deque[Parcel] = field(default_factory=deque)
    receivers: list[Receiver] = field(default_factory=list)

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
    __slots__ = ("_parcel", "_receiver", "lane", "message", "redelivered")

    def __init__(self, receiver: Receiver, parcel: Parcel) -> None:
        """Decode the parcel; raise KeyError or ValueError for a command that this version does not know."""
        self.message = decode(parcel.kind, parcel.body)
        self.redelivered = parcel.delivered
        parcel.delivered = True
        self._receiver = receiver
        self._parcel = parcel
        self.lane = parcel.lane

    def stand_for(self, message: Message) -> None:
        self._parcel.kind, body = encode(message)
        self._parcel.body, self.message = body, message

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


class Receiver:
    def __init__(self, bus: InProcessBus, lanes: Sequence[Lane], prefetch: int) -> None:
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
        """Return False if this receiver no longer holds the parcel: settled before, or returned by close()."""
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
                # the receiver served last is woken last, so that receivers of a lane take turns
                lane.receivers.remove(self)
                lane.receivers.append(self)
                return parcel
        return None

    async def get(self) -> Delivery:
        # nothing is taken before the last await, so a cancelled get() loses no task
        while not self._stopped:
            parcel = self._take()
            if parcel is not None:
                try:
                    delivery = _Delivery(self, parcel)
                except (KeyError, ValueError) as error:
                    self.bus.set_aside(parcel, error)
                    continue
                self._unacked[id(parcel)] = parcel
                tracing.adopt(parcel.trace)
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
