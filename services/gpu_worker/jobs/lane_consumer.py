"""The consumer of the worker's lanes: it takes no more frames than the worker has rows, and leaves lanes without losing
a task."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import Any

from shared.bus import Bus, Delivery, Receiver
from shared.domain.errors import UnavailableError
from shared.domain.messages import GenerateImage
from shared.runtime.telemetry import log


class LaneConsumer:
    """Run `handle` once per delivery, in an asyncio task of its own; `handle` settles the delivery."""

    def __init__(
        self, bus: Bus, most: int, handle: Callable[[Delivery], Coroutine[Any, Any, None]], *, ahead: bool = True
    ) -> None:
        """most: frames in hand at most, an image is one; ahead: whether the bus may deliver tasks before they are
        taken."""
        self._bus, self._most, self._handle, self._ahead = bus, most, handle, ahead
        self.in_hand: dict[asyncio.Task[None], Delivery] = {}
        self.lanes: tuple[str, ...] = ()
        self._full_at = time.monotonic()
        """Time at which the rows were last full, or consuming began."""
        self._wanted = self._aside = False
        self._one_at_a_time = asyncio.Lock()
        """Held while consuming starts or stops."""
        self._receiver: Receiver | None = None
        self._loop: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def _full(self) -> bool:
        frames = [_frames(delivery) for delivery in self.in_hand.values()]
        return bool(frames) and sum(frames) + max(frames) > self._most

    def had_room(self, seconds: float) -> bool:
        """Return whether the rows have room, and had room for so long: then no task waits in the lanes."""
        return not self._full and time.monotonic() - self._full_at > seconds

    @property
    def going_on(self) -> bool:
        """Return whether this consumer takes tasks, or will take them once `come_back` is called."""
        return self._wanted

    async def begin(self, lanes: tuple[str, ...]) -> None:
        """Consume these lanes from now on, or from `come_back` on. Tasks in hand continue to their end. Raises what the
        bus raises."""
        async with self._one_at_a_time:
            if not self._aside:
                await self._open(lanes)
            self.lanes, self._wanted = lanes, True

    async def pause(self) -> None:
        """Take no new task, and return prefetched tasks to their lanes for other workers (docs/architecture.md,
        Delivery rules). Cancelling a receiver's `get` loses no task."""
        async with self._one_at_a_time:
            self._wanted = False
            await self._shut()

    async def stand_aside(self) -> None:
        """Pause until `come_back`, even if `begin` is called before."""
        async with self._one_at_a_time:
            self._aside = True
            await self._shut()

    async def come_back(self) -> None:
        """Consume again if `begin` was called and `pause` was not. Raises what the bus raises; the consumer then stays
        paused."""
        async with self._one_at_a_time:
            if self._wanted:
                await self._open(self.lanes)
            self._aside = False

    async def finished(self) -> None:
        """Wait until no task is in hand."""
        while self.in_hand:
            await asyncio.wait(self.in_hand)

    async def close(self, timeout_s: float) -> None:
        """Take no new task, and cancel the tasks that are not finished after `timeout_s` seconds, which hands them
        back."""
        await self.pause()
        if self.in_hand:
            await asyncio.wait(self.in_hand, timeout=timeout_s)
        for task in self.in_hand:
            task.cancel()
        await asyncio.gather(*self.in_hand, *self._leaving, return_exceptions=True)
        if self._receiver is not None:
            await self._receiver.close()

    async def _open(self, lanes: tuple[str, ...]) -> None:
        # prefetched tasks would wait behind the tasks in hand although another worker may have a free row
        ahead = self._ahead and self._loop is None and not self.in_hand
        receiver = await self._bus.receive(lanes, prefetch=self._most, ahead=ahead)
        await self._end_loop()
        if self._receiver is not None:
            leaving = asyncio.create_task(_leave(self._receiver, set(self.in_hand)))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
        self._receiver, self._full_at = receiver, time.monotonic()
        self._loop = asyncio.create_task(self._take(receiver))

    async def _shut(self) -> None:
        await self._end_loop()
        if self._receiver is not None:
            await self._receiver.stop()

    async def _end_loop(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
            self._loop = None

    async def _take(self, receiver: Receiver) -> None:
        """Receive while the rows have room for another task as long as the longest one in hand."""
        with contextlib.suppress(UnavailableError):  # the bus is closed
            while True:
                while self._full:
                    await asyncio.wait(self.in_hand, return_when=asyncio.FIRST_COMPLETED)
                    self._full_at = time.monotonic()
                delivery = await receiver.get()
                task = asyncio.create_task(self._handle(delivery))
                self.in_hand[task] = delivery
                task.add_done_callback(self.in_hand.pop)


def _frames(delivery: Delivery) -> int:
    """Return the frames of the job that the delivery stands for now: its task may have been exchanged."""
    return delivery.message.frames if isinstance(delivery.message, GenerateImage) else 1


async def _leave(receiver: Receiver, in_hand: set[asyncio.Task[None]]) -> None:
    """Stop receiving at once, and close the receiver when its tasks have ended: closing returns unsettled tasks to
    their lanes."""
    try:
        await receiver.stop()
        if in_hand:
            await asyncio.wait(in_hand)
        await receiver.close()
    except Exception as error:
        log("gpu_worker").warning("old lanes not closed", error=repr(error))
